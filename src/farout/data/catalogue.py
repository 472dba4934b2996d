"""The table of named sets: what each is for, how people keep it on disk, how many images, where to get it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from farout.data import cifar, readers, svhn
from farout.data.readers import Reader


@dataclass(frozen=True)
class SetInfo:
    """One named set.

    `layouts` are the paths tried below the data root, as globs, in this order. `splits` maps "train", "test",
    ... to the word that fills `{split}` in them; a set without splits ignores the split asked for. `expected`
    counts the images of each split ("all" where there are none); `md5` knows published files by their name.
    """

    name: str
    role: str
    layouts: tuple[str, ...]
    reader: Reader
    source: str
    licence: str
    splits: Mapping[str, str] = field(default_factory=dict)
    expected: Mapping[str, int] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    md5: Mapping[str, str] = field(default_factory=dict)

    def count(self, split: str) -> int | None:
        """The images that `split` should have, None where releases differ."""
        return self.expected.get(split if self.splits else "all")

    def patterns(self, split: str) -> list[str]:
        """The layouts with `split` filled in."""
        return [layout.format(split=self.splits.get(split, split)) for layout in self.layouts]


TRAIN_TEST = {"train": "train", "test": "test"}
TRAIN_VAL = {"train": "train", "test": "val"}

# The roots below which the OE, energy and DAL releases, the WISC releases and OpenOOD keep their test sets.
HOMES = ("", "ood_datasets/", "datasets/ood_datasets/", "ood_data/", "datasets/ood_data/")


def at_homes(*folders: str) -> tuple[str, ...]:
    """Each folder below each home, the plainest first."""
    return tuple(home + folder for home in HOMES for folder in folders)


_IMAGENET_TERMS = "ImageNet terms of access: non-commercial research"
_ODIN = "the ODIN release (github.com/facebookresearch/odin); "

_TABLE = (
    SetInfo(
        "cifar10",
        "in-distribution, 10 classes; near-OOD for CIFAR-100",
        (
            "cifar-10-batches-bin",
            "cifar-10-batches-py",
            "*/cifar-10-batches-bin",
            "*/cifar-10-batches-py",
            "images_classic/cifar10/{split}",
        ),
        readers.cifar10,
        "unpack cifar-10-binary.tar.gz or cifar-10-python.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html",
        "Krizhevsky 2009; no licence stated",
        TRAIN_TEST,
        {"train": 50_000, "test": 10_000},
        cifar.CIFAR10_CLASSES,
        cifar.MD5_10,
    ),
    SetInfo(
        "cifar100",
        "in-distribution, 100 fine classes; near-OOD for CIFAR-10",
        (
            "cifar-100-binary",
            "cifar-100-python",
            "*/cifar-100-binary",
            "*/cifar-100-python",
            "images_classic/cifar100/{split}",
        ),
        readers.cifar100,
        "unpack cifar-100-binary.tar.gz or cifar-100-python.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html",
        "Krizhevsky 2009; no licence stated",
        TRAIN_TEST,
        {"train": 50_000, "test": 10_000},
        cifar.CIFAR100_CLASSES,
        cifar.MD5_100,
    ),
    SetInfo(
        "svhn",
        "test OOD: digits on house fronts, 32 x 32",
        (
            *at_homes("{split}_32x32.mat", "svhn/{split}_32x32.mat", "SVHN/{split}_32x32.mat"),
            "images_classic/svhn/{split}",
        ),
        readers.svhn,
        "download {train,test,extra}_32x32.mat from http://ufldl.stanford.edu/housenumbers",
        "Netzer et al. 2011; non-commercial use only",
        {"train": "train", "test": "test", "extra": "extra"},
        {"train": 73_257, "test": 26_032, "extra": 531_131},
        svhn.CLASSES,
        svhn.MD5,
    ),
    SetInfo(
        "textures",
        "test OOD: the Describable Textures Dataset, 47 classes",
        (
            *at_homes("dtd/images", "textures/images", "Textures/images", "Textures"),
            "images_classic/texture",
            "images_largescale/texture",
        ),
        readers.folder,
        "unpack dtd-r1.0.1.tar.gz from https://www.robots.ox.ac.uk/~vgg/data/dtd",
        "Cimpoi et al. 2014; research use",
        expected={"all": 5_640},
    ),
    SetInfo(
        "places365",
        "test OOD: scenes; releases take different subsets, so name yours",
        (
            *at_homes("places365_standard/val", "places365/test_subset", "places365", "Places/images", "Places"),
            "images_classic/places365",
        ),
        readers.folder,
        "download the small images (256 x 256), standard, from http://places2.csail.mit.edu/download.html",
        "Zhou et al. 2018; images under their owners' terms",
    ),
    SetInfo(
        "lsun",
        "test OOD: LSUN scenes, random crops (36 x 36 as released, resized to `size` as DAL does)",
        at_homes("LSUN/test", "LSUN", "LSUN_C", "LSUN_crop"),
        readers.folder,
        _ODIN + "Hugging Face has it as parquet, detectors/lsun_c-ood: save that as lsun.npz",
        "Yu et al. 2015; crops by Liang et al. 2018",
        expected={"all": 10_000},
    ),
    SetInfo(
        "lsun-r",
        "test OOD: LSUN scenes resized to 32 x 32",
        at_homes("LSUN_resize"),
        readers.folder,
        _ODIN + "Hugging Face has it as parquet, detectors/lsun_r-ood: save that as lsun-r.npz",
        "Yu et al. 2015; resized by Liang et al. 2018, with artefacts that make it easy",
        expected={"all": 10_000},
    ),
    SetInfo(
        "isun",
        "test OOD: SUN scenes, 32 x 32",
        at_homes("iSUN"),
        readers.folder,
        _ODIN + "Hugging Face has it as parquet, detectors/isun-ood: save that as isun.npz",
        "Xu et al. 2015; resized by Liang et al. 2018",
        expected={"all": 8_925},
    ),
    SetInfo(
        "lsun-fix",
        "hard test OOD for CIFAR-10: LSUN resized without artefacts",
        at_homes("LSUN_fix", "LSUN_FIX"),
        readers.folder,
        "the CSI release (github.com/alinlab/CSI) links LSUN_fix",
        "Yu et al. 2015; resized by Tack et al. 2020",
        expected={"all": 10_000},
    ),
    SetInfo(
        "imagenet-resize",
        "hard test OOD for CIFAR-10: Tiny ImageNet's test images at 32 x 32",
        at_homes("Imagenet_resize", "ImageNet_resize", "imagenet_resize"),
        readers.folder,
        _ODIN + "file Imagenet_resize.tar.gz",
        f"Deng et al. 2009; {_IMAGENET_TERMS}",
        expected={"all": 10_000},
    ),
    SetInfo(
        "tinyimagenet",
        "auxiliary outliers (drop the classes that overlap); test is its labelled validation split",
        (
            "tiny-imagenet-200/{split}",
            "*/tiny-imagenet-200/{split}",
            "tinyimagenet/{split}",
            "images_classic/tin/{split}",
        ),
        readers.wordnet,
        "unpack http://cs231n.stanford.edu/tiny-imagenet-200.zip",
        f"Stanford CS231n; {_IMAGENET_TERMS}",
        TRAIN_VAL,
        {"train": 100_000, "test": 10_000},
    ),
    SetInfo(
        "300k",
        "auxiliary outliers: 300,000 cleaned images of 80 Million Tiny Images",
        ("300K_random_images.npy", "*/300K_random_images.npy", "unlabeled_datasets/*/300K_random_images.npy"),
        readers.arrays,
        "300K_random_images.npy, linked from github.com/hendrycks/outlier-exposure",
        "Hendrycks et al. 2019; images under their owners' terms",
        expected={"all": 300_000},
    ),
    SetInfo(
        "tiny-images",
        "auxiliary outliers: 80 Million Tiny Images (79,302,017), less those in CIFAR",
        (
            "tiny_images.bin",
            "*/tiny_images.bin",
            "unlabeled_datasets/80M_Tiny_Images/tiny_images.bin",
            "datasets/unlabeled_datasets/80M_Tiny_Images/tiny_images.bin",
        ),
        readers.tiny_images,
        "withdrawn by its authors in 2020: use 300k or tinyimagenet, or a copy you already have, with"
        " 80mn_cifar_idxs.txt beside it",
        "Torralba et al. 2008; withdrawn for offensive content",
    ),
    SetInfo(
        "imagenet",
        "in-distribution, 1,000 classes; test is its validation split; size (256, 224) is usual",
        (
            "imagenet/{split}",
            "ImageNet/{split}",
            "ILSVRC-2012/{split}",
            "id_data/ILSVRC-2012/{split}",
            "ILSVRC/Data/CLS-LOC/{split}",
            "images_largescale/imagenet_1k/{split}",
        ),
        readers.wordnet,
        "https://image-net.org/download.php (ILSVRC 2012), the validation images sorted into class folders",
        f"Russakovsky et al. 2015; {_IMAGENET_TERMS}",
        TRAIN_VAL,
        {"train": 1_281_167, "test": 50_000},
    ),
    SetInfo(
        "inaturalist",
        "test OOD for ImageNet: 10,000 plant images, no ImageNet class",
        (
            *at_homes("iNaturalist/images", "iNaturalist", "inaturalist/images"),
            "images_largescale/inaturalist/images",
            "images_largescale/inaturalist",
        ),
        readers.folder,
        "iNaturalist.tar.gz, linked from github.com/deeplearning-wisc/large_scale_ood",
        "Van Horn et al. 2018, chosen by Huang and Li 2021; non-commercial",
        expected={"all": 10_000},
    ),
    SetInfo(
        "sun",
        "test OOD for ImageNet: 10,000 scenes, no ImageNet class",
        at_homes("SUN/images", "SUN", "sun/images"),
        readers.folder,
        "SUN.tar.gz, linked from github.com/deeplearning-wisc/large_scale_ood",
        "Xiao et al. 2010, chosen by Huang and Li 2021; research use",
        expected={"all": 10_000},
    ),
    SetInfo(
        "imagenet21k-p",
        "auxiliary outliers for ImageNet (drop the classes that overlap): 11,060,223 training images in the"
        " winter 2021 release, 11,797,632 in that of fall 2011",
        (
            "imagenet21k_resized/imagenet21k_{split}",
            "imagenet21k_{split}",
            "imagenet21k_resized/{split}",
            "imagenet21k-p/{split}",
        ),
        readers.wordnet,
        "the processed ImageNet-21K (imagenet21k_resized.tar.gz) from https://image-net.org/download.php",
        f"Ridnik et al. 2021; {_IMAGENET_TERMS}",
        TRAIN_VAL,
    ),
)

SETS: Mapping[str, SetInfo] = {info.name: info for info in _TABLE}

ALIASES: Mapping[str, str] = {
    "cifar-10": "cifar10",
    "cifar-100": "cifar100",
    "dtd": "textures",
    "texture": "textures",
    "places": "places365",
    "lsun-c": "lsun",
    "lsun-crop": "lsun",
    "lsun-resize": "lsun-r",
    "tin": "tinyimagenet",
    "tiny-imagenet": "tinyimagenet",
    "tiny-imagenet-200": "tinyimagenet",
    "300k-random-images": "300k",
    "80m": "tiny-images",
    "imagenet-1k": "imagenet",
    "imagenet-21k-p": "imagenet21k-p",
}

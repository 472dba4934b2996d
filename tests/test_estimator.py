"""The estimators keep scikit-learn's contracts, and their closed-form training is farout's DAL and OE."""

import importlib.util
import json
import os
import pickle
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator
from torch import nn

from farout.estimators import DALClassifier, FeatureDetector, OEClassifier
from farout.estimators.probe import PlainRisk, Probe, WorstRisk, inlier_gradient, shuffled
from farout.estimators.rows import DenseRows, SparseRows
from farout.estimators.scaling import Scaling
from farout.estimators.span_search import span_search
from farout.methods import METHODS
from farout.metrics import auroc
from farout.nets.net import Net
from farout.types import Batch
from farout.worst_case import RULES, DualVariable, closed_form_search

ROOT = Path(__file__).resolve().parent.parent
CLASSIFIERS = [OEClassifier, DALClassifier]


@pytest.fixture(scope="module")
def blobs():
    """Three classes and outliers in six dimensions."""
    random = np.random.default_rng(0)
    centres = 4 * np.eye(3, 6)
    y = np.arange(300) % 3
    x = centres[y] + random.standard_normal((300, 6))
    x_out = 3 * random.standard_normal((150, 6))
    return x, y, x_out


# scikit-learn's contracts


@pytest.mark.parametrize(
    "estimator",
    [OEClassifier(epochs=5), DALClassifier(epochs=5), FeatureDetector(), FeatureDetector("mahalanobis")],
    ids=["oe", "dal", "knn", "mahalanobis"],
)
@pytest.mark.filterwarnings("ignore")
def test_the_checks_of_scikit_learn_pass(estimator):
    """One is skipped unless SCIPY_ARRAY_API=1 is set before scipy is imported; then it passes, too."""
    results = check_estimator(estimator, on_skip=None, on_fail=None)
    failed = [(r["check_name"], r["exception"]) for r in results if r["status"] not in ("passed", "skipped")]
    assert not failed
    assert {r["check_name"] for r in results if r["status"] == "skipped"} <= {"check_array_api_input"}


def test_the_check_that_wants_the_array_api_switched_on_passes_too():
    """scipy reads the switch when it is imported, hence a process of its own."""
    code = """if True:
        import warnings
        warnings.simplefilter("ignore")
        from sklearn.utils.estimator_checks import estimator_checks_generator
        from farout.estimators import DALClassifier, FeatureDetector, OEClassifier
        for estimator in (OEClassifier(epochs=2), DALClassifier(epochs=2), FeatureDetector()):
            for one, check in estimator_checks_generator(estimator):
                if "array_api" in getattr(check, "func", check).__name__:
                    check(one)
                    print("passed")
    """
    environment = {**os.environ, "SCIPY_ARRAY_API": "1", "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["passed"] * 3


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_pipeline_grid_search_cross_validation_and_clone(kind, blobs):
    x, y, x_out = blobs
    assert cross_val_score(make_pipeline(StandardScaler(), kind(epochs=3)), x, y, cv=2).min() > 0.9
    found = GridSearchCV(kind(epochs=2, random_state=0), {"alpha": [0.1, 1.0]}, cv=2).fit(x, y, X_out=x_out)
    assert found.best_score_ > 0.9
    assert clone(found.best_estimator_).get_params() == found.best_estimator_.get_params()


def test_a_pipeline_can_transform_the_outliers_too(blobs):
    import sklearn

    x, y, x_out = blobs
    shifted = [part + 100 for part in (x, x_out)]
    with sklearn.config_context(enable_metadata_routing=True):
        last = OEClassifier(standardise=False, random_state=0).set_fit_request(X_out=True)
        steps = make_pipeline(StandardScaler(), last, transform_input=["X_out"])
        steps.fit(shifted[0], y, X_out=shifted[1])
    scaler = StandardScaler().fit(shifted[0])
    alone = clone(last).fit(scaler.transform(shifted[0]), y, X_out=scaler.transform(shifted[1]))
    np.testing.assert_allclose(steps[-1].coef_, alone.coef_)


def test_a_pickle_predicts_the_same_and_holds_plain_arrays_only(blobs):
    x, y, x_out = blobs
    for model in (DALClassifier(epochs=2).fit(x, y, X_out=x_out), FeatureDetector("mahalanobis").fit(x, y)):
        written = pickle.dumps(model)
        assert b"torch" not in written
        np.testing.assert_array_equal(pickle.loads(written).decision_function(x), model.decision_function(x))


@pytest.mark.parametrize("labels", [np.array(["red", "green", "blue"]), np.array([-7, 0, 1000]), np.array([0.0, 1, 2])])
def test_labels_of_any_kind_come_back(labels, blobs):
    x, y, x_out = blobs
    model = DALClassifier(epochs=5, random_state=0).fit(x, labels[y], X_out=x_out)
    assert model.score(x, labels[y]) > 0.9
    assert model.predict(x).dtype == labels.dtype
    assert model.predict_proba(x).shape == (300, 3)
    assert list(model.classes_) == sorted(labels)


def test_two_classes_give_a_decision_of_one_dimension(blobs):
    x, y, _ = blobs
    model = OEClassifier(epochs=5).fit(x[y < 2], y[y < 2])
    decision = model.decision_function(x[y < 2])
    assert decision.shape == (200,)
    np.testing.assert_array_equal(decision > 0, model.predict(x[y < 2]) == 1)
    np.testing.assert_allclose(model.predict_proba(x[y < 2])[:, 1], 1 / (1 + np.exp(-decision)))


def fitted(blobs):
    x, y, x_out = blobs
    yield DALClassifier(epochs=2, random_state=0).fit(x, y, X_out=x_out)
    yield OEClassifier(random_state=0).partial_fit(x, y, classes=[0, 1, 2]).calibrate(x)
    yield from (FeatureDetector(name).fit(x, y) for name in ("knn", "mahalanobis"))


def test_joblib_brings_them_back(blobs, tmp_path):
    joblib = pytest.importorskip("joblib")
    for model in fitted(blobs):
        joblib.dump(model, tmp_path / "m.joblib")
        again = joblib.load(tmp_path / "m.joblib")
        np.testing.assert_array_equal(again.score_samples(blobs[0]), model.score_samples(blobs[0]))
        np.testing.assert_array_equal(again.predict(blobs[0]), model.predict(blobs[0]))


def test_skops_brings_them_back_and_asks_to_trust_farout_alone(blobs, tmp_path):
    skops = pytest.importorskip("skops.io", reason="pip install skops")
    for model in fitted(blobs):
        skops.dump(model, tmp_path / "m.skops")
        asked = skops.get_untrusted_types(file=tmp_path / "m.skops")
        assert asked
        assert all(name.startswith("farout.estimators.") for name in asked)
        again = skops.load(tmp_path / "m.skops", trusted=asked)
        np.testing.assert_array_equal(again.score_samples(blobs[0]), model.score_samples(blobs[0]))


def test_a_data_frame_of_labels_and_a_cross_validation_of_the_detector(blobs):
    pandas = pytest.importorskip("pandas")
    x, y, _ = blobs
    names = pandas.Series(np.array(["ant", "bee", "cat"])[y], dtype="category")
    model = OEClassifier(epochs=3).fit(pandas.DataFrame(x), names)
    assert set(model.predict(x)) == {"ant", "bee", "cat"}
    side = np.where(np.arange(300) < 290, 1, -1)
    moved = np.where(side[:, None] > 0, x, x + 30)
    found = cross_val_score(FeatureDetector("knn", options={"k": 3}), moved[:290], side[:290], scoring="accuracy", cv=2)
    assert found.min() > 0.85
    search = GridSearchCV(FeatureDetector(), {"ood_score": ["knn", "mahalanobis"]}, scoring=lambda m, x, y: m.offset_)
    assert search.fit(x, y).best_params_["ood_score"] in ("knn", "mahalanobis")


def test_data_frames_bring_their_names(blobs):
    pandas = pytest.importorskip("pandas")
    x, y, x_out = blobs
    frame, outliers = (pandas.DataFrame(part, columns=list("abcdef")) for part in (x, x_out))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # fit must not warn of names lost on the way
        model = DALClassifier(epochs=2).fit(frame, y, X_out=outliers)
        model.is_outlier(frame)
    assert list(model.feature_names_in_) == list("abcdef")
    with pytest.raises(ValueError, match="feature names"):
        model.fit(frame, y, X_out=outliers[list("fedcba")])


def test_the_seed_decides(blobs):
    x, y, x_out = blobs
    before = torch.get_rng_state()
    fits = [DALClassifier(epochs=2, rho=0, random_state=s).fit(x, y, X_out=x_out).coef_ for s in (0, 0, 1)]
    assert torch.equal(before, torch.get_rng_state()), "the global generator is the user's"
    np.testing.assert_array_equal(fits[0], fits[1])
    assert not np.array_equal(fits[0], fits[2])


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_errors_name_the_thing(kind, blobs):
    x, y, x_out = blobs
    with pytest.raises(ValueError, match="one class"):
        kind().fit(x, np.zeros(300))
    with pytest.raises(ValueError, match="X_out: X has 5 features.*expecting 6 features"):
        kind().fit(x, y, X_out=x_out[:, :5])
    hole = x_out.copy()
    hole[3, 2] = np.nan
    with pytest.raises(ValueError, match="X_out: Input X contains NaN"):
        kind().fit(x, y, X_out=hole)
    with pytest.raises(ValueError, match="X_out: .*contains infinity"):
        kind().partial_fit(x, y, classes=[0, 1, 2], X_out=np.full((2, 6), np.inf))
    with pytest.raises(ValueError, match="X_out: Found array with 0 sample"):
        kind().fit(x, y, X_out=x_out[:0])
    with pytest.raises(ValueError, match="'alpha' parameter"):
        kind(alpha=-1).fit(x, y)
    with pytest.raises(ValueError, match="ood_score"):
        kind(ood_score="knn").fit(x, y)
    with pytest.raises(ValueError, match="classes must list"):
        kind().partial_fit(x, y)
    with pytest.raises(ValueError, match="did not list"):
        kind().partial_fit(x, y, classes=[0, 1])
    with pytest.raises(ValueError, match="the first call said"):
        kind().partial_fit(x, y, classes=[0, 1, 2]).partial_fit(x, y, classes=[0, 1, 3])
    with pytest.raises(ValueError, match="call calibrate"):
        kind().partial_fit(x, y, classes=[0, 1, 2]).is_outlier(x)


# what they learn


def test_without_outliers_it_is_multinomial_logistic_regression(blobs):
    x, y, _ = blobs
    theirs = LogisticRegression(C=1.0, tol=1e-8, max_iter=1000).fit(x, y)
    options = {"l2": 1 / 300, "standardise": False, "held_out": 0, "random_state": 0}
    ours = OEClassifier(epochs=1000, batch_size=300, learning_rate=0.1, **options).fit(x, y)
    np.testing.assert_allclose(ours.predict_proba(x), theirs.predict_proba(x), atol=2e-3)


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_outliers_make_outliers_found(kind, blobs):
    """They lie beside the first class, along a feature that means nothing to a plain classifier."""
    x, y, x_out = blobs
    x_out = x_out / 3 + [4, 0, 0, 6, 0, 0]

    def found(model):
        return auroc(id_scores=model.score_samples(x), ood_scores=model.score_samples(x_out[50:]))

    plain = kind(epochs=10, random_state=0).fit(x, y)
    exposed = kind(epochs=10, random_state=0).fit(x, y, X_out=x_out[:50])
    assert found(plain) < 0.8
    assert found(exposed) > 0.9


def test_the_threshold_keeps_the_share_of_the_held_out_rows(blobs):
    x, y, x_out = blobs
    model = OEClassifier(tpr=0.9, random_state=0).fit(x, y, X_out=x_out)
    assert model.n_iter_ == 30
    _, held = model._split(300)
    assert len(held) == 30
    assert model.is_outlier(x[held]).mean() == pytest.approx(0.1)
    model.calibrate(x[:100], tpr=0.8)
    assert model.is_outlier(x[:100]).mean() == pytest.approx(0.2)
    model.set_params(ood_score="energy")
    with pytest.raises(ValueError, match="one of 'msp'"):
        model.is_outlier(x)
    assert not hasattr(model.partial_fit(x, y), "threshold_")


def test_the_held_out_rows_change_nothing_but_the_threshold(blobs):
    x, y, _ = blobs
    model = OEClassifier(epochs=2, random_state=0).fit(x, y)
    other = x.copy()
    other[model._split(300)[1]] += 50
    moved = OEClassifier(epochs=2, random_state=0).fit(other, y)
    np.testing.assert_array_equal(model.coef_, moved.coef_)
    assert model.threshold_ != moved.threshold_


def test_logits_are_centred_over_the_classes(blobs):
    """Else the energy would depend on the optimiser: a shift of all logits changes no probability."""
    x, y, x_out = blobs
    model = DALClassifier(epochs=2).fit(x + 7, y, X_out=x_out)
    np.testing.assert_allclose(model.decision_function(x).mean(axis=1), 0, atol=1e-9)


def test_each_score_is_the_one_of_the_table(blobs):
    x, y, _ = blobs
    model = OEClassifier(epochs=2).fit(x, y)
    logits = model.decision_function(x)
    np.testing.assert_allclose(model.score_samples(x), np.log(model.predict_proba(x).max(axis=1)), rtol=1e-9)
    np.testing.assert_allclose(model.set_params(ood_score="max-logit").score_samples(x), logits.max(axis=1))
    np.testing.assert_allclose(model.set_params(ood_score="energy").score_samples(x), np.log(np.exp(logits).sum(1)))


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_sparse_rows_train_as_dense_ones(kind, blobs):
    x, y, x_out = blobs
    dense = [np.where(np.abs(part) > 1, part, 0) for part in (x, x_out)]
    options = {"standardise": False, "epochs": 3, "random_state": 0}
    a = kind(**options).fit(dense[0], y, X_out=dense[1])
    b = kind(**options).fit(sparse.csr_matrix(dense[0]), y, X_out=sparse.csc_matrix(dense[1]))
    np.testing.assert_allclose(a.coef_, b.coef_, atol=1e-5)
    np.testing.assert_allclose(a.predict_proba(dense[0]), b.predict_proba(sparse.csr_matrix(dense[0])), atol=1e-5)


@pytest.mark.parametrize("standardise", [True, False])
def test_dense_rows_with_sparse_outliers_train_as_if_both_were_dense(standardise, blobs):
    x, y, x_out = blobs
    options = {"standardise": standardise, "epochs": 3, "random_state": 0}
    wanted = DALClassifier(**options).fit(x, y, X_out=x_out)
    mixed = DALClassifier(**options).fit(x, y, X_out=sparse.csr_matrix(x_out))
    np.testing.assert_allclose(mixed.coef_, wanted.coef_, atol=1e-5)


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_without_outliers_the_two_are_one(kind, blobs):
    x, y, _ = blobs
    wanted = OEClassifier(epochs=2, random_state=0).fit(x, y)
    np.testing.assert_array_equal(kind(epochs=2, random_state=0).fit(x, y).coef_, wanted.coef_)


def test_partial_fit_takes_one_pass_with_the_scaling_of_its_first_call(blobs):
    x, y, x_out = blobs
    model = OEClassifier(random_state=0).partial_fit(x[:100], y[:100], classes=[0, 1, 2], X_out=x_out)
    scaling, steps = model._scaling, model._moments[2]
    assert steps == -(-100 // 16)
    model.partial_fit(10 + 3 * x[100:], y[100:])
    assert model._scaling is scaling
    assert (model._moments[2], model.n_iter_) == (steps + -(-200 // 16), 2)
    assert not hasattr(model, "threshold_")
    assert model.calibrate(x, tpr=0.9).is_outlier(x).mean() == pytest.approx(0.1)
    again = model.fit(x, y)
    np.testing.assert_array_equal(again.coef_, OEClassifier(random_state=0).fit(x, y).coef_)  # fit starts anew


def test_partial_fit_goes_on_where_it_was(blobs):
    """Three calls are one run with three epochs at a constant rate: moments, γ and the order of rows go on."""
    x, y, x_out = blobs
    model = DALClassifier(rho=0.01, random_state=0)
    for _ in range(3):
        model.partial_fit(x, y, classes=[0, 1, 2], X_out=x_out)
        model = pickle.loads(pickle.dumps(model))
    whole = DALClassifier(rho=0.01, random_state=0)
    whole.classes_ = np.arange(3)
    whole._seed = model._seed
    whole._begin(x)
    from farout.training.optim import constant

    whole._descend(whole._scaling.apply(x), y, x_out, 3, constant)
    np.testing.assert_array_equal(model.coef_, whole.coef_)
    assert model.gamma_ == whole.gamma_ != model.gamma0
    assert model.n_iter_ == 3


# the closed form against the oracle


def _oracle(method, probe, x, y, x_out):
    """The gradient of a method of farout.methods by autograd, on a net that is a linear head."""
    head = nn.Linear(*probe.weight.shape)
    with torch.no_grad():
        head.weight.copy_(probe.weight.T)
        head.bias.copy_(probe.bias)
    terms = method.loss(Net(nn.Identity(), head), Batch(x, y, x_out))
    sum(terms.values()).backward()
    return Probe(head.weight.grad.T, head.bias.grad)


@pytest.fixture(scope="module")
def problem():
    torch.manual_seed(0)
    probe = Probe(torch.randn(12, 5), torch.randn(5))
    return probe, torch.randn(8, 12), torch.arange(8) % 5, torch.randn(9, 12)


def _check_gradient(probe, risk, method, x, y, x_out):
    expected = _oracle(method, probe, x, y, x_out)
    for rows in (DenseRows(x_out), SparseRows(sparse.csr_matrix(x_out.numpy()))):
        inner, outer = inlier_gradient(probe, DenseRows(x), y), risk()(probe, rows)
        torch.testing.assert_close(inner.weight + outer.weight, expected.weight, atol=2e-5, rtol=1e-4)
        torch.testing.assert_close(inner.bias + outer.bias, expected.bias, atol=2e-5, rtol=1e-4)


def test_the_gradient_of_outlier_exposure_is_autograds(problem):
    probe, x, y, x_out = problem
    _check_gradient(probe, lambda: PlainRisk(0.7), METHODS["oe"](alpha=0.7), x, y, x_out)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("gamma0", "rho"), [(0.0, 1e6), (0.0, 0.1), (0.3, 0.1)])
def test_the_gradient_and_the_price_of_dal_are_autograds(problem, rule, gamma0, rho):
    probe, x, y, x_out = problem
    options = {"rho": rho, "beta": 0.05, "gamma0": gamma0}
    method = METHODS["dal"](alpha=0.7, num_search=4, ps=0.3, rule=rule, search="autograd", **options)
    method.rule = replace(method.rule, start="zero")
    risks = []

    def risk():
        risks.append(WorstRisk(0.7, method.rule, 4, 0.3, DualVariable(**options)))
        return risks[-1]

    _check_gradient(probe, risk, method, x, y, x_out)
    for made in risks:
        assert float(made.dual.gamma) == pytest.approx(float(method.dual.gamma), rel=1e-4)


@pytest.mark.parametrize("unit", [True, False])
def test_the_search_in_the_span_is_the_closed_form_without_a_price(problem, unit):
    probe, _, _, z = problem
    head = nn.Linear(12, 5)
    head.weight.data, head.bias.data = probe.weight.T.clone(), probe.bias.clone()
    rule = replace(RULES["reference" if unit else "paper"], start="zero")
    worst = closed_form_search(
        head, z, torch.zeros_like(z), torch.tensor(0.0), steps=6, step_size=0.2, rule=replace(rule, cost="l1")
    )
    centred = probe.weight - probe.weight.mean(dim=1, keepdim=True)
    logits = z @ probe.weight + probe.bias
    span = span_search(logits, centred.T @ centred, steps=6, step_size=0.2, unit=unit)
    torch.testing.assert_close(span.coefficients @ centred.T, worst.p, atol=1e-5, rtol=1e-4)
    charged = span.charged if unit else span.coefficients
    torch.testing.assert_close((charged @ centred.T).abs().sum(dim=1), worst.cost, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(
        span.logits.softmax(dim=1), (logits + worst.p @ probe.weight).softmax(dim=1), atol=1e-5, rtol=1e-4
    )


def test_a_head_of_zeros_does_not_move():
    span = span_search(torch.zeros(3, 4), torch.zeros(4, 4), steps=5, step_size=1.0, unit=True)
    assert not span.coefficients.any()
    assert span.logits.isfinite().all()


# parts


def test_an_epoch_sees_every_row_once_and_all_outliers():
    x, y, z = DenseRows(torch.arange(10.0)[:, None]), torch.arange(10), DenseRows(torch.arange(6.0)[:, None])
    batches = list(shuffled(x, y, z, 4, None, torch.Generator().manual_seed(0)))
    assert [len(batch[1]) for batch in batches] == [4, 4, 2]
    assert torch.cat([rows.dense() for rows, _, _ in batches]).flatten().sort().values.tolist() == list(range(10))
    assert all((rows.dense().flatten() == labels).all() for rows, labels, _ in batches)
    assert torch.cat([out.dense() for _, _, out in batches]).flatten().sort().values.tolist() == list(range(6))
    wide = list(shuffled(x, y, z, 4, 5, torch.Generator().manual_seed(0)))
    assert [len(out) for _, _, out in wide] == [5, 5, 5]


def test_scaling_leaves_dead_features_alone():
    """A unit of 1e-33, as sentence embeddings have them, is not blown up to variance 1; nor is a constant."""
    x = np.column_stack([np.linspace(-1, 1, 9), np.full(9, 0.1), 1e-33 * np.arange(9)])
    scaled = Scaling.of(x, True).apply(x).dense()
    assert scaled[:, 0].std(correction=0) == pytest.approx(1)
    assert scaled[:, 1:].abs().max() < 1e-6


def test_sparse_scaling_keeps_zeros_and_lengths():
    x = sparse.random_array((20, 50), density=0.1, rng=np.random.default_rng(0), format="csr") * 7
    scaled = Scaling.of(x, True).apply(x)
    assert scaled.x.nnz == x.nnz
    assert (scaled.dense() ** 2).sum(dim=1).mean() == pytest.approx(1, rel=1e-5)


# the feature detector


@pytest.mark.parametrize("score", ["knn", "mahalanobis"])
def test_the_detector_finds_what_is_far(score, blobs):
    x, y, _ = blobs
    far = np.full((5, 6), -20.0)
    model = FeatureDetector(score, contamination=0.1).fit(x, y)
    assert (model.predict(far) == -1).all()
    assert (model.predict(x) == -1).sum() == 30
    np.testing.assert_allclose(model.decision_function(x), model.score_samples(x) - model.offset_)


def test_mahalanobis_takes_the_classes_from_the_labels(blobs):
    from scipy.spatial.distance import mahalanobis

    x, y, _ = blobs
    names = np.array(["a", "b", "c"])[y]
    model = FeatureDetector("mahalanobis", options={"ridge": 0.0}).fit(x, names)
    means = np.stack([x[y == k].mean(axis=0) for k in range(3)])
    precision = np.linalg.inv((x - means[y]).T @ (x - means[y]) / 300)
    nearest = min(mahalanobis(x[0], mean, precision) for mean in means)
    assert model.score_samples(x[:1])[0] == pytest.approx(-(nearest**2))
    single = FeatureDetector("mahalanobis").fit(x)
    assert abs(single.score_samples(x[:1])[0] - model.score_samples(x[:1])[0]) > 1e-3


def test_the_detectors_errors_name_the_thing(blobs):
    x, y, _ = blobs
    with pytest.raises(ValueError, match="k=500"):
        FeatureDetector("knn", options={"k": 500}).fit(x)
    with pytest.raises(ValueError, match="'kk'"):
        FeatureDetector("knn", options={"kk": 5}).fit(x)
    with pytest.raises(ValueError, match="inconsistent"):
        FeatureDetector("mahalanobis").fit(x, y[:-1])
    with pytest.raises(ValueError, match="ood_score"):
        FeatureDetector("msp").fit(x)


# the example


def test_the_text_example_runs_on_a_few_sentences(tmp_path, capsys):
    spec = importlib.util.spec_from_file_location("intent_oos", ROOT / "examples" / "intent_oos.py")
    example = importlib.util.module_from_spec(spec)
    sys.modules["intent_oos"] = example  # typing looks NamedTuples up by their module
    spec.loader.exec_module(example)
    intents = {"weather": "will it rain in", "transfer": "send some money to", "alarm": "wake me up at"}
    intents |= {"translate": "how do you say", "music": "play a song by"}
    places = ["paris", "rome", "noon", "bob", "anna", "seven", "oslo", "the beach"]
    known = [[f"{start} {place}", name] for name, start in intents.items() for place in places]
    parts = {"train": known, "val": known, "test": known, "oos_test": [["what is the meaning of life", "oos"]] * 5}
    (tmp_path / "clinc.json").write_text(json.dumps(parts))
    (tmp_path / "wiki.txt").write_text("".join(f"the river number {n} was named in the war\n" for n in range(20)))
    files = ["--data", str(tmp_path / "clinc.json"), "--outliers", str(tmp_path / "wiki.txt")]
    assert example.main([*files, "--seeds", "2", "--epochs", "5", "--out", str(tmp_path / "rows.jsonl")]) == 0
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [(row["method"], row["seed"], row["score"]) for row in rows] == [
        (method, seed, score) for method in ("msp", "oe", "dal") for seed in (0, 1) for score in ("msp", "energy")
    ]
    assert all(row["accuracy"] > 0.9 for row in rows)
    printed = capsys.readouterr().out
    assert "AUROC" in printed
    apart = [json.loads(line) for line in (tmp_path / "rows-differences.jsonl").read_text().splitlines()]
    assert [(row["first"], row["second"]) for row in apart[::3]] == [("oe", "msp"), ("dal", "oe")]
    for row in apart:
        assert row["low"] <= row["value"] <= row["high"]
        assert row["words"] in printed
    again = [*files, "--seeds", "2", "--epochs", "5", "--chosen", str(tmp_path / "rows.jsonl")]
    assert example.main([*again, "--out", str(tmp_path / "again.jsonl")]) == 0
    assert (tmp_path / "again.jsonl").read_text() == (tmp_path / "rows.jsonl").read_text()

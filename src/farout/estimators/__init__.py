"""Classifiers and outlier detectors on embeddings or sparse text features, with scikit-learn's interface."""

from farout.estimators.classifiers import DALClassifier, OEClassifier
from farout.estimators.feature_detector import FeatureDetector

__all__ = ["DALClassifier", "FeatureDetector", "OEClassifier"]

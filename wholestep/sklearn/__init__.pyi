# What the package exports, and from where: the one list of it.  Type checkers read it as it is; `lazy.py` makes the
# package's names of it.  The order is that of docs/api/.
from wholestep.sklearn.classifier import Classifier as Classifier
from wholestep.sklearn.regressor import Regressor as Regressor
from wholestep.sklearn.estimator import EXPECTED_FAILED_CHECKS as EXPECTED_FAILED_CHECKS

"""The model families of the design environment: which scikit-learn expression each choice is rendered to.

Every choice is rendered as it stands. Some fail when they run, as they would in anyone's hands: a multinomial naive Bayes with
negative inputs, a linear model with missing values, a model without probabilities where probabilities are asked for, a forest
that is too large for the time limit.
"""

from __future__ import annotations

from dataclasses import dataclass

from wmrl_gym.envs.autoresearch.design.space import Design


@dataclass(frozen=True, slots=True)
class Model:
    """An estimator as source text.

    Args:
        imports: the import lines that it needs.
        expression: what makes it.
        balanced: whether it takes ``class_weight="balanced"``, which the adjusted target of a classification task asks for.
    """

    imports: tuple[str, ...]
    expression: str
    balanced: bool = False


def model(design: Design, *, classify: bool, probabilities: bool) -> Model:
    """The estimator of a design.

    Args:
        design: the choices.
        classify: a classifier, else a regressor.
        probabilities: whether class probabilities will be asked of it.
    """
    makers = (_linear, _neighbours, _tree, _random_forest, _extra_trees, _boosting, _support, _bayes, _network)
    if makers[design.family] is _support:
        return _support(design, classify, probabilities=probabilities)
    return makers[design.family](design, classify)


def _line(module: str, name: str) -> tuple[str, ...]:
    return (f"from sklearn.{module} import {name}",)


def _linear(design: Design, classify: bool) -> Model:
    """size: iterations; strength: penalty; rate: which linear model."""
    iterations = (20, 100, 300, 1000, 3000)[design.size]
    alpha = ("0.001", "0.1", "1.0", "10.0", "100.0")[design.strength]
    if not classify:
        name = ("Ridge", "Lasso", "ElasticNet", "HuberRegressor")[design.rate]
        return Model(_line("linear_model", name), f"{name}(alpha={alpha}, max_iter={iterations})")
    c = ("100.0", "10.0", "1.0", "0.1", "0.01")[design.strength]
    if design.rate == 0:
        return Model(_line("linear_model", "LogisticRegression"), f"LogisticRegression(C={c}, max_iter={iterations})", True)
    if design.rate == 1:
        text = f'LogisticRegression(C={c}, l1_ratio=1.0, solver="saga", max_iter={iterations}, random_state=0)'
        return Model(_line("linear_model", "LogisticRegression"), text, True)
    if design.rate == 2:
        return Model(_line("linear_model", "RidgeClassifier"), f"RidgeClassifier(alpha={alpha})", True)
    shrinkage = (0.0, 0.05, 0.2, 0.5, 0.9)[design.strength]
    text = f'LinearDiscriminantAnalysis(solver="lsqr", shrinkage={shrinkage})'
    return Model(_line("discriminant_analysis", "LinearDiscriminantAnalysis"), text)


def _neighbours(design: Design, classify: bool) -> Model:
    """size: neighbours; strength: how distance counts; rate: the metric."""
    name = "KNeighborsClassifier" if classify else "KNeighborsRegressor"
    count = (1, 3, 7, 15, 40)[design.size]
    weights = "distance" if design.strength >= 2 else "uniform"
    metric = ("euclidean", "manhattan", "cosine", "chebyshev")[design.rate]
    return Model(_line("neighbors", name), f'{name}(n_neighbors={count}, weights="{weights}", metric="{metric}")')


def _tree(design: Design, classify: bool) -> Model:
    """size: depth; strength: smallest leaf; rate: pruning."""
    name = "DecisionTreeClassifier" if classify else "DecisionTreeRegressor"
    depth = (2, 4, 6, 10, None)[design.size]
    leaf = (1, 3, 8, 20, 50)[design.strength]
    pruning = (0.0, 0.001, 0.005, 0.02)[design.rate]
    text = f"{name}(max_depth={depth}, min_samples_leaf={leaf}, ccp_alpha={pruning}, random_state=0)"
    return Model(_line("tree", name), text, True)


def _forest(name: str, design: Design) -> Model:
    """size: trees; strength: smallest leaf; rate: columns tried at each split."""
    trees = (20, 60, 150, 400, 1000)[design.size]
    leaf = (1, 2, 4, 10, 25)[design.strength]
    columns = ('"sqrt"', "0.25", "0.5", "1.0")[design.rate]
    text = f"{name}(n_estimators={trees}, min_samples_leaf={leaf}, max_features={columns}, random_state=0)"
    return Model(_line("ensemble", name), text, True)


def _random_forest(design: Design, classify: bool) -> Model:
    return _forest("RandomForestClassifier" if classify else "RandomForestRegressor", design)


def _extra_trees(design: Design, classify: bool) -> Model:
    return _forest("ExtraTreesClassifier" if classify else "ExtraTreesRegressor", design)


def _boosting(design: Design, classify: bool) -> Model:
    """size: rounds; strength: fewer leaves and more shrinkage; rate: learning rate."""
    name = "HistGradientBoostingClassifier" if classify else "HistGradientBoostingRegressor"
    rounds = (20, 60, 150, 400, 1000)[design.size]
    leaves, ridge = ((31, 0.0), (15, 0.1), (8, 1.0), (4, 3.0), (3, 10.0))[design.strength]
    rate = (0.02, 0.06, 0.15, 0.4)[design.rate]
    text = (
        f"{name}(max_iter={rounds}, max_leaf_nodes={leaves}, l2_regularization={ridge}, learning_rate={rate}, "
        f"early_stopping=False, random_state=0)"
    )
    return Model(_line("ensemble", name), text, True)


def _support(design: Design, classify: bool, *, probabilities: bool = False) -> Model:
    """size: width of the kernel; strength: penalty; rate: the kernel."""
    name = "SVC" if classify else "SVR"
    gamma = ('"scale"', '"auto"', "0.001", "0.01", "0.1")[design.size]
    c = ("100.0", "10.0", "1.0", "0.1", "0.01")[design.strength]
    kernel = ("rbf", "poly", "linear", "sigmoid")[design.rate]
    balance = ', class_weight="balanced"' if classify and design.target == 1 else ""
    text = f'{name}(C={c}, kernel="{kernel}", gamma={gamma}{balance})'
    imports = _line("svm", name)
    if not probabilities:
        return Model(imports, text)
    # Support vectors have no probabilities of their own.
    return Model(
        (*_line("calibration", "CalibratedClassifierCV"), *imports), f"CalibratedClassifierCV({text}, cv=3, ensemble=False)"
    )


def _bayes(design: Design, classify: bool) -> Model:
    """strength: smoothing; rate: which model. Regressors are Bayesian or of the exponential family."""
    smoothing = ("0.001", "0.01", "0.1", "1.0", "10.0")[design.strength]
    if classify:
        name = ("GaussianNB", "MultinomialNB", "BernoulliNB", "ComplementNB")[design.rate]
        argument = f"var_smoothing={smoothing}" if name == "GaussianNB" else f"alpha={smoothing}"
        return Model(_line("naive_bayes", name), f"{name}({argument})")
    iterations = (20, 100, 300, 1000, 3000)[design.size]
    if design.rate < 2:
        name = ("BayesianRidge", "ARDRegression")[design.rate]
        return Model(_line("linear_model", name), f"{name}(max_iter={iterations}, lambda_1={smoothing}, lambda_2={smoothing})")
    name = ("PoissonRegressor", "GammaRegressor")[design.rate - 2]
    return Model(_line("linear_model", name), f"{name}(alpha={smoothing}, max_iter={iterations})")


def _network(design: Design, classify: bool) -> Model:
    """size: hidden layers; strength: weight decay; rate: learning rate."""
    name = "MLPClassifier" if classify else "MLPRegressor"
    hidden = ("(8,)", "(32,)", "(128,)", "(64, 64)", "(256, 128)")[design.size]
    decay = ("0.00001", "0.0001", "0.01", "0.3", "3.0")[design.strength]
    rate = ("0.0003", "0.001", "0.01", "0.1")[design.rate]
    text = f"{name}(hidden_layer_sizes={hidden}, alpha={decay}, learning_rate_init={rate}, max_iter=100, random_state=0)"
    return Model(_line("neural_network", name), text)

# The functions that the other packages call through `wholestep.lazy.interop`.
from wholestep.interop.arguments import (
    adapt as adapt, drop_foreign_arguments as drop_foreign_arguments, translate_arguments as translate_arguments,
)
from wholestep.interop.names import (
    library_of as library_of, suggest_replacement as suggest_replacement,
    suggest_torch_function as suggest_torch_function,
)
from wholestep.interop.names import (
    foreign_attribute as foreign_attribute, resolve_missing as resolve_missing, suggestion as suggestion,
)
from wholestep.interop.keras.fit import translate_fit_arguments as translate_fit_arguments
from wholestep.interop.keras.names import LOSS_SUGGESTIONS as LOSS_SUGGESTIONS, METRIC_SYNONYMS as METRIC_SYNONYMS
from wholestep.interop.numpy_ufuncs import apply_ufunc as apply_ufunc

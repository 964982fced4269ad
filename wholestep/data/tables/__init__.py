"""Tables with named columns: from pandas, Polars, Arrow and CSV files to the arrays that a model computes with."""

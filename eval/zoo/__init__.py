"""The zoo: kernels that cheat, in disguise, each beside an honest look-alike; `eval.zoo.catalogue` lists them."""

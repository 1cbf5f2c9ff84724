"""The zoo: kernels that cheat, in disguise, each beside an honest look-alike; `zoo.exploits.catalogue` lists them."""

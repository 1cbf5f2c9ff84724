"""Values over named loops, the operators that they are made of, and the parameters of functions that compute them."""

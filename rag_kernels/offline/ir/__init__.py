"""Values over named loops, and the parameters of the functions that compute them."""

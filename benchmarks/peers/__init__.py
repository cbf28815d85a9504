"""One file a peer: each turns the neutral messages into its own objects, and constructs, dumps and loads them its own way."""

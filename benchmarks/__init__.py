"""Side by side with the peers: how long antiphon takes, as a ratio to something everybody knows. See README.md."""

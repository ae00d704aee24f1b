"""Names, units and meaning of every quantity; the chain that links them; human spellings of amounts."""

"""Pure closed forms, one topic a module: no card, no input or output, no state."""

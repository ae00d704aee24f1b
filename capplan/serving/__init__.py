"""One instance of a model: cards and a layout become memory, step time, prefill time and link loads."""

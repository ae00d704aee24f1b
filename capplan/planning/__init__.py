"""From a scenario to pools: the search, the percentiles and the answer."""

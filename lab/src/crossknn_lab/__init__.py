"""The lab of crossknn: sweeps, reports, the papers' figures, analyses of score matrices."""

"""Products on Hopper: tiles come by TMA, wgmma multiplies them; how they are cut, and what stands behind their sums."""

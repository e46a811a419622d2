import sapc


def physics(grid):
    mass = sapc.Balance(grid.integral("u"), times=grid.time.points)
    return sapc.Pin.frame(0) & mass

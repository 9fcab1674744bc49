package testcluster

// PID is the process of one of the programs, by its name in package binaries; 0 when it does not run.
func (c *Cluster) PID(name string) int {
	for _, p := range c.programs() {
		if p.name == name && p.running() {
			return p.life.PID()
		}
	}
	return 0
}

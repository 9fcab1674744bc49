package testcluster

// PID returns the process ID of a program, by its name in package binaries; 0 if it is not running.
func (c *Cluster) PID(name string) int {
	for _, p := range c.programs() {
		if p.name == name && p.running() {
			return p.life.PID()
		}
	}
	return 0
}

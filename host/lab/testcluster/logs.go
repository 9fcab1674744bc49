package testcluster

import (
	"fmt"
	"strings"
)

// Logs returns the end of each program's log.
func (c *Cluster) Logs() string { return c.logs(nil) }

func (c *Cluster) programs() []*process {
	var out []*process
	for _, p := range append([]*process{c.etcd, c.apiserver, c.manager}, c.more...) {
		if p != nil {
			out = append(out, p)
		}
	}
	return out
}

func (c *Cluster) logs(from map[string]int64) string {
	var b strings.Builder
	for _, p := range c.programs() {
		if text := p.tail(from[p.name]); text != "" {
			fmt.Fprintf(&b, "--- %s\n%s\n", p.name, text)
		}
		if !p.running() {
			fmt.Fprintf(&b, "--- %s does not run\n", p.name)
		}
	}
	return b.String()
}

// TB is the part of testing.TB that LogOnFailure needs.
type TB interface {
	Helper()
	Failed() bool
	Cleanup(func())
	Logf(format string, args ...any)
}

// LogOnFailure prints what the programs log until the end of a test if the test fails.
func (c *Cluster) LogOnFailure(t TB) {
	from := map[string]int64{}
	for _, p := range c.programs() {
		from[p.name] = p.logSize()
	}
	t.Cleanup(func() {
		t.Helper()
		if t.Failed() {
			t.Logf("log of the control plane:\n%s", c.logs(from))
		}
	})
}

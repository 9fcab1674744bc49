package agent

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
)

// TestStormPostponesCollection changes so many Services that most of them wait, and looks at GOGC, which allows more garbage
// meanwhile.
func TestStormPostponesCollection(t *testing.T) {
	before := debug.SetGCPercent(100)
	t.Cleanup(func() { debug.SetGCPercent(before) })
	t.Setenv("GOGC", "")
	live := make([]byte, 96<<20) // with which GOGC is below 50 otherwise
	r := newRig(t, noServers)
	services := func(port int) string {
		var all strings.Builder
		for i := range 1000 {
			fmt.Fprintf(&all, "apiVersion: v1\nkind: Service\nmetadata: {namespace: shop, name: s%d}\nspec: {clusterIP: 10.96.%d.%d, ports: [{port: %d}]}\n---\n", i, i/250, 1+i%250, port)
		}
		return all.String()
	}
	r.write("manifests/services.yaml", services(80))
	stop := r.run()
	port, looks := 80, 0
	testenv.Eventually(t, "more garbage than usual", func() bool {
		if looks++; looks%20 == 1 {
			port++
			r.write("manifests/services.yaml", services(port))
		}
		p := debug.SetGCPercent(100)
		debug.SetGCPercent(p)
		return p > 50 && p < 100
	}, r.log.String)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	runtime.KeepAlive(live)
}

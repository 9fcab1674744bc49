package agent

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"
)

// TestStormPostponesCollection changes so many Services that most of them wait, and looks at GOGC, which allows more garbage meanwhile.
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
	postponed := false
	for port, deadline := 81, time.Now().Add(time.Minute); !postponed && time.Now().Before(deadline); port++ {
		r.write("manifests/services.yaml", services(port))
		for range 100 {
			p := debug.SetGCPercent(100)
			debug.SetGCPercent(p)
			postponed = postponed || p > 50 && p < 100
			time.Sleep(time.Millisecond)
		}
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if !postponed {
		t.Errorf("never more garbage than usual:\n%s", r.log)
	}
	runtime.KeepAlive(live)
}

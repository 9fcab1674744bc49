package ipvs

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
)

func TestExternalChangesAreDetectedAndRepaired(t *testing.T) {
	d := newEnv(t)
	b := d.open()
	p := web(t, 1, 3)
	d.apply(b, p, nil)
	changes := make(chan backend.ExternalChange, 10)
	stop, err := b.Watch(func(f backend.ExternalChange) { changes <- f })
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	drifted := func() bool {
		t.Helper()
		m, err := b.Drifted(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	for range 3 {
		if drifted() {
			t.Error("drifted without a reason")
		}
	}
	for _, damage := range []string{
		"ipvsadm -e -t 10.96.0.80:80 -r 10.244.0.1:9000 -m -w 9",
		"ipvsadm -d -t 10.96.0.80:80 -r 10.244.0.1:9000",
		"ipvsadm -e -t 10.96.0.80:80 -r 10.244.0.1:9000 -m -w 1 -x 1",
		"ipvsadm -E -t 10.96.0.80:80 -s rr -b flag-3",
		"ipvsadm -D -t 10.96.0.80:80",
		"ip addr del 10.96.0.80/32 dev " + DefaultLink,
		"ip link del " + DefaultLink,
	} {
		words := strings.Fields(damage)
		if _, err := d.run("", words[0], words[1:]...); err != nil {
			t.Fatal(err)
		}
		if !drifted() {
			t.Errorf("%s is not detected", damage)
		}
		if got, err := b.Read(context.Background()); err != nil || got.Equal(p) {
			t.Errorf("after %s the plan reads as before, %v", damage, err)
		}
		d.apply(b, p, nil)
		if a := d.ask(d.Client, "tcp", "10.96.0.80:80"); a.Server == "" {
			t.Error("not repaired")
		}
		drifted() // ends the scan
	}
	if _, err := d.run("flush chain ip sluice services\n", "nft", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	select {
	case <-changes:
	case <-time.After(askTimeout):
		t.Error("a flushed chain is not notified")
	}
}

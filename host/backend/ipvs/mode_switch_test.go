package ipvs

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/backend/nftables"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// startModeNFTables programs a plan in mode nftables.
func (d *env) startModeNFTables(p *plan.Plan) *nftables.Backend {
	d.Helper()
	nft, err := nftables.Open(nftables.Options{Netns: d.Lab.Node.Fd(), Now: func() time.Time { return d.now }})
	if err != nil {
		d.Fatal(err)
	}
	d.Cleanup(func() { nft.Close() })
	if _, err := nft.Apply(context.Background(), p, nil); err != nil {
		d.Fatal(err)
	}
	return nft
}

// TestModeSwitchIsDeclinedWhileAFrontendFails: mode nftables keeps forwarding; after maxDeclines the switch happens
// without the frontend.
func TestModeSwitchIsDeclinedWhileAFrontendFails(t *testing.T) {
	d := newEnv(t)
	p := web(t, 1)
	nft := d.startModeNFTables(p)
	d.mustRun("ipvsadm", "-A", "-t", "10.96.0.80:80", "-s", "rr")
	for k, f := range frontend(t, "10.97.0.1:80/TCP  ClusterIP", "", []int{1}).Frontends {
		p.Frontends[k] = f
	}
	o := d.options()
	o.ExcludeCIDRs = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/24")}
	b, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for try := range maxDeclines + 1 {
		_, err := b.Apply(context.Background(), p, nil)
		if err == nil || !strings.Contains(err.Error(), "excludeCIDRs") {
			t.Fatalf("try %d: %v", try, err)
		}
		if try < maxDeclines {
			d.ask(d.Client, "tcp", "10.96.0.80:80") // still forwarded
			if got, err := nft.Read(context.Background()); err != nil || len(got.Frontends) != 1 {
				t.Errorf("try %d: %v, %v", try, got, err)
			}
		}
	}
	d.ask(d.Client, "tcp", "10.97.0.1:80") // programmed without the failing one
}

// TestSwitchingModesRejectsNoConnection switches between nftables and IPVS while clients connect.
func TestSwitchingModesRejectsNoConnection(t *testing.T) {
	d := newEnv(t)
	p := web(t, 1, 1)
	nft := d.startModeNFTables(p)
	old := d.dial("10.96.0.80:80")
	stop, ended := make(chan struct{}), make(chan error)
	var made int
	var slowest time.Duration
	go func() {
		for {
			select {
			case <-stop:
				ended <- nil
				return
			default:
			}
			begin := time.Now()
			if _, err := d.Client.Ask("tcp", netip.MustParseAddrPort("10.96.0.80:80"), askTimeout); err != nil {
				ended <- err
				return
			}
			made++
			slowest = max(slowest, time.Since(begin))
		}
	}()
	var last net.Conn
	for range 3 {
		b := d.open()
		d.apply(b, p, nil)
		if err := checkAlive(old); err != nil {
			t.Errorf("a connection from before IPVS: %v", err)
		}
		time.Sleep(100 * time.Millisecond) // nothing happens to connections
		last = d.dial("10.96.0.80:80")
		b.Close()
		if _, err := nft.Apply(context.Background(), p, nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond) // nothing happens to connections
		left, err := DrainAll(context.Background(), d.options(), false)
		if err != nil || left == 0 {
			t.Errorf("DrainAll left %d virtual servers, %v: one has a connection", left, err)
		}
		if err := checkAlive(last); err != nil {
			t.Errorf("a connection from IPVS: %v", err)
		}
	}
	close(stop)
	if err := <-ended; err != nil {
		t.Errorf("after %d connections: %v", made, err)
	}
	if slowest >= time.Second {
		t.Errorf("one took %s: its first packet was lost", slowest)
	}
	t.Logf("%d connections, the slowest took %s", made, slowest)
	if _, err := Cleanup(context.Background(), d.options()); err != nil {
		t.Error(err)
	}
	if _, err := DrainAll(context.Background(), d.options(), false); err != nil && !errors.Is(err, ErrNoIPVS) {
		t.Error(err)
	}
}

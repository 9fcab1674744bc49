package main

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

func TestMain(m *testing.M) { testnet.Main(m) }

func TestLoadCountsConnectionsAndALongOneStaysOpen(t *testing.T) {
	lab, err := testnet.New(netip.MustParseAddr("192.168.9.1"))
	if err != nil {
		t.Fatal(err)
	}
	defer lab.Close()
	client, err := lab.AddHost("client", netip.MustParseAddr("10.1.0.2"))
	if err != nil {
		t.Fatal(err)
	}
	pod, err := lab.AddHost("pod", netip.MustParseAddr("10.1.0.3"))
	if err != nil {
		t.Fatal(err)
	}
	at := netip.AddrPortFrom(pod.Addrs[0], 8080)
	server, err := pod.Serve("tcp", at, "catalog-1")
	if err != nil {
		t.Fatal(err)
	}
	l, done := start(context.Background(), client, at, 4000)
	<-done
	if r := l.snapshot(); r.total != 4000 || r.counts["catalog-1"] != 4000 || r.failed != 0 {
		t.Errorf("got %+v, want 4000 answers", r)
	} else {
		t.Logf("%.0f connections a second", float64(r.total)/r.took.Seconds())
	}
	long, err := openLongConnection(context.Background(), client, at, "catalog-1")
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond) // time passes: exchanges are made
	if exchanges, _, err := long.end(); err != nil || exchanges < 1 {
		t.Errorf("long-lived connection: %d exchanges, %v", exchanges, err)
	}
	if _, err := openLongConnection(context.Background(), client, at, "catalog-2"); err == nil {
		t.Error("a long connection to a Pod that does not serve")
	}
	server.Close()
	l, done = start(context.Background(), client, at, 100)
	<-done
	if r := l.snapshot(); r.total != 0 || r.failed != 100 || !testnet.Refused(r.first) {
		t.Errorf("got %+v, want 100 refusals", r)
	}
}

package ipvs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/backend"
)

const nodePort = "192.168.0.1:30080" // see globalSection

func TestMarksHaveOnlyBitsOfTheMask(t *testing.T) {
	for _, mask := range []uint32{0x3, DefaultMarkMask, 0x80000001, 0x7ff00000} {
		b := &Backend{o: Options{MarkMask: mask}, state: state{marksInUse: map[uint32]bool{}}}
		n := min(b.maxMarks(), 5000)
		for range n {
			m, err := b.allocateMark()
			if err != nil || m == 0 || m == mask || m&^mask != 0 {
				t.Fatalf("%#x: mark %#x, %v", mask, m, err)
			}
		}
		if len(b.state.marksInUse) != int(n) {
			t.Errorf("%#x: %d marks, not %d", mask, len(b.state.marksInUse), n)
		}
		if n < 5000 {
			if _, err := b.allocateMark(); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("ipvs.markMask %#x", mask)) {
				t.Errorf("%#x: %v", mask, err)
			}
		}
	}
}

// TestFrontendsWithoutAMarkAreNamed: the others are programmed, and so is it once a mark is free.
func TestFrontendsWithoutAMarkAreNamed(t *testing.T) {
	d := newMemEnv(t)
	d.markMask = 0x3 // two marks
	b := d.open()
	p := frontend(t, "*4:30001/TCP  NodePort", "", []int{1})
	for port := 30002; port <= 30003; port++ {
		maps.Copy(p.Frontends, frontend(t, fmt.Sprintf("*4:%d/TCP  NodePort", port), "", []int{1}).Frontends)
	}
	_, err := b.Apply(context.Background(), p, nil)
	var partial *backend.PartialError
	if !errors.As(err, &partial) || len(partial.Failed) != 1 || !strings.Contains(err.Error(), "ipvs.markMask 0x3") {
		t.Fatal(err)
	}
	got, err := b.Read(context.Background())
	if err != nil || len(got.Frontends) != 2 {
		t.Fatalf("%v, %v", got, err)
	}
	delete(p.Frontends, got.Keys()[0])
	for range 10 { // the mark is free after the Apply that removes its frontend
		if _, err = b.Apply(context.Background(), p, nil); err == nil {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	d.expectRead(b, p)
}

// TestAnotherMaskKeepsConnections restarts with other bits: the virtual servers of the old marks stay until their
// connections end, and readers understand both.
func TestAnotherMaskKeepsConnections(t *testing.T) {
	d := newEnv(t)
	p := frontend(t, "*4:30080/TCP  NodePort", "", []int{1, 1})
	b := d.open()
	d.apply(b, p, nil)
	old := d.dial(nodePort)
	b.Close()
	d.markMask = 0x7ff00000
	b = d.open()
	d.apply(b, p, nil)
	if err := checkAlive(old); err != nil {
		t.Errorf("a connection made with the old mark: %v", err)
	}
	d.ask(d.Client, "tcp", nodePort)
	if got, err := Read(context.Background(), Options{Netns: d.Lab.Node.Fd()}); err != nil || !p.Equal(got) {
		t.Errorf("a reader without configuration: %v, %v", got, err)
	}
	count := func() int { return strings.Count(d.ipvsadmSave(), "-A -f ") }
	if n := count(); n != 2 {
		t.Errorf("%d fwmark services, not 2:\n%s", n, d.ipvsadmSave())
	}
}

// TestOtherBitsOfPacketMarksAreKept has rules that set bits of other programs before sluice marks a packet, and, as
// Calico's Felix does, between that and IPVS.
func TestOtherBitsOfPacketMarksAreKept(t *testing.T) {
	for name, c := range map[string]struct{ before, between, want uint32 }{
		"before sluice":              {0x10000, 0, 0x10000},
		"between sluice and IPVS":    {0, 0x300000, 0x300000},
		"before and between":         {0x10000, 0x300000, 0x300000},
		"before, and all bits of us": {0x10000 | DefaultMarkMask, 0, 0x10000},
	} {
		t.Run(name, func(t *testing.T) {
			d := newEnv(t)
			d.apply(d.open(), frontend(t, "*4:30080/TCP  NodePort", "", []int{1}), nil)
			if _, err := d.run(fmt.Sprintf(`table ip other {
	chain before { type filter hook prerouting priority -150; tcp dport 30080 meta mark set meta mark or %d; }
	chain between { type filter hook input priority 0; tcp dport 30080 meta mark set meta mark or %d; }
	chain after { type filter hook output priority 0; tcp flags syn tcp dport 9000 meta mark and 0xffffbfff == %d counter; }
}`, c.before, c.between, c.want), "nft", "-f", "-"); err != nil {
				t.Fatal(err)
			}
			a := d.ask(d.Client, "tcp", nodePort)
			if a.Client.Addr() == d.Client.Addr(a.Client.Addr()) {
				t.Errorf("%s sees %s: not masqueraded", a.Server, a.Client)
			}
			if out := d.mustRun("nft", "list", "table", "ip", "other"); strings.Contains(out, "counter packets 0") {
				t.Errorf("the mark is another one when IPVS has chosen an endpoint:\n%s", out)
			}
		})
	}
}

// TestPacketsThatAreNotForServicesKeepTheirMark: WireGuard and others mark the packets of their sockets with any bits.
func TestPacketsThatAreNotForServicesKeepTheirMark(t *testing.T) {
	d := newEnv(t)
	d.apply(d.open(), frontend(t, "*4:30080/TCP  NodePort", "", []int{1}), nil)
	if _, err := d.run(`table ip other {
	chain in { type filter hook prerouting priority -150; ip daddr 192.168.0.1 tcp dport 7 meta mark set 0xca6c; }
	chain input { type filter hook input priority 102; tcp dport 7 meta mark 0xca6c counter; }
	chain out { type route hook output priority -150; tcp sport 7 meta mark set 0xca6c; }
	chain output { type filter hook output priority 0; tcp sport 7 meta mark 0xca6c counter; }
}`, "nft", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	if c, err := d.Client.Dial(context.Background(), "tcp", netip.MustParseAddrPort("192.168.0.1:7")); err == nil {
		c.Close()
		t.Fatal("something listens")
	}
	if out := d.mustRun("nft", "list", "table", "ip", "other"); strings.Contains(out, "counter packets 0") {
		t.Errorf("the mark has changed:\n%s", out)
	}
}

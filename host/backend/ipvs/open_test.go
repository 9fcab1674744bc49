package ipvs

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestWithoutIPVSOpenFailsAndCleanupDoesNot(t *testing.T) {
	if checkIPVS() == nil {
		t.Skip("this kernel has IPVS")
	}
	d := newEnvOf(t, 1)
	if _, err := Open(d.options()); !errors.Is(err, ErrNoIPVS) || !strings.Contains(err.Error(), "modprobe ip_vs") {
		t.Errorf("open: %v", err)
	}
	if removed, err := Cleanup(context.Background(), d.options()); err != nil || len(removed) > 0 {
		t.Errorf("cleanup: %v, %v", removed, err)
	}
	if _, err := DrainAll(context.Background(), d.options(), false); !errors.Is(err, ErrNoIPVS) {
		t.Errorf("DrainAll: %v", err)
	}
	features, err := Probe(context.Background())
	if err != nil || len(features) != 1 || !errors.Is(features[0].Err, ErrNoIPVS) {
		t.Errorf("probe: %+v, %v", features, err)
	}
}

func TestProbeFindsAllFeaturesInTheTestKernel(t *testing.T) {
	requireIPVS(t)
	features, err := Probe(context.Background())
	if err != nil || len(features) < 8 {
		t.Errorf("%+v, %v", features, err)
	}
	for _, f := range features {
		if f.Err != nil {
			t.Errorf("%s: %v", f.Name, f.Err)
		}
	}
}

func TestOpenSetsSysctlsAndTimeouts(t *testing.T) {
	d := newEnv(t)
	read := func(name string) string {
		var b []byte
		err := d.Lab.Node.Do(func() (err error) {
			b, err = os.ReadFile(Sysctl{Name: name}.path())
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(b))
	}
	before := read("net.ipv4.conf.all.arp_ignore")
	d.open().Close()
	if now := read("net.ipv4.conf.all.arp_ignore"); now != before {
		t.Errorf("arp_ignore is %s without strictARP", now)
	}
	o := d.options()
	o.StrictARP, o.TCPTimeout, o.UDPTimeout = true, 20*time.Minute, 7*time.Second
	b, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for _, s := range Sysctls(o) {
		if got, want := read(s.Name), s.Want; got != map[int]string{0: "0", 1: "1", 2: "2"}[want] {
			t.Errorf("%s is %s, want %d", s.Name, got, want)
		}
	}
	out, err := d.run("", "ipvsadm", "-L", "--timeout")
	if err != nil || !strings.Contains(out, "1200 120 7") {
		t.Errorf("%s, %v", out, err)
	}
}

// userNamespaceIPVS is IPVS as it responds in a user namespace.
type userNamespaceIPVS struct{ ipvsAPI }

func (userNamespaceIPVS) listServers() (map[serverKey]serverConfig, error) { return nil, unix.EPERM }

func TestOpenExplainsEPERMInAUserNamespace(t *testing.T) {
	b := newMemEnv(t).open()
	b.ipvs = userNamespaceIPVS{b.ipvs}
	if err := b.initialize(); !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "initial user namespace") {
		t.Error(err)
	}
}

package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// configured writes a configuration file.
func (n *node) configured(text string) string {
	n.Helper()
	file := filepath.Join(n.TempDir(), "sluice.yaml")
	if err := os.WriteFile(file, []byte("apiVersion: sluice.dev/v1alpha1\nkind: SluiceConfiguration\n"+text), 0o644); err != nil {
		n.Fatal(err)
	}
	return file
}

func TestFailedStartLeavesNothingBehind(t *testing.T) {
	n := newNode(t)
	if out, err := n.sluice(append(n.args("run"), "--once")...); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	before := n.listing()
	if err := n.lab.Node.Do(func() error {
		l, err := net.Listen("tcp4", "127.0.0.1:7777")
		if err == nil {
			t.Cleanup(func() { l.Close() })
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	file, socket := filepath.Join(t.TempDir(), "file"), filepath.Join(t.TempDir(), "sock")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	taken := n.configured("metricsBindAddress: 127.0.0.1:7777\nhealthzBindAddress: ''\nbindAddressHardFail: true\n")
	for _, c := range []struct {
		name string
		args []string
		want string
	}{
		{"no such configuration", []string{"--config", file + ".none", "--socket", socket}, "sluice: configuration: stat " + file + ".none: "},
		{"no folder for the socket", []string{"--socket", filepath.Join(file, "sock")}, "state socket: mkdir " + file},
		{"an address that it must have is taken", []string{"--config", taken, "--socket", socket}, "sluice: metrics (metricsBindAddress): listen tcp 127.0.0.1:7777"},
	} {
		out, err := n.sluice(append(n.args("run"), c.args...)...)
		if err == nil || !strings.Contains(out, c.want) {
			t.Errorf("%s: %v, want %q\n%s", c.name, err, c.want, out)
		}
		if after := n.listing(); after != before {
			t.Errorf("%s: the ruleset is\n%s\nwas\n%s", c.name, after, before)
		}
		if _, err := os.Lstat(socket); err == nil {
			t.Errorf("%s: its socket is there", c.name)
		}
	}
	n.run()
	n.logs("netlink_messages=0")
	n.expect("after it all", "p1 p2")
}

// TestStopDoesNotWait for clients with slow requests, or for slow responses.
func TestStopDoesNotWait(t *testing.T) {
	n := newNode(t)
	n.run("--config", n.configured("metricsBindAddress: 127.0.0.1:10249\nhealthzBindAddress: 127.0.0.1:10256\nenableProfiling: true\n"))
	dial := func(port uint16) (net.Conn, error) {
		return n.lab.Node.Dial(context.Background(), "tcp", netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port))
	}
	hold := func(c net.Conn, err error, say string) {
		t.Helper()
		if err == nil {
			_, err = io.WriteString(c, say)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
	}
	const profile = "/debug/pprof/profile?seconds=600"
	c, err := dial(10256)
	hold(c, err, "GET /healthz HTTP/1.1\r\nHost")
	for _, say := range []string{"", "GET /explain?namespace=shop&service=web HTTP/1.1\r\nHo"} {
		c, err = net.Dial("unix", n.socket())
		hold(c, err, say)
	}

	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) { return dial(10249) },
	}, Timeout: time.Second}
	for end := time.Now().Add(timeout); ; { // the server takes one profile at a time: that of c, or that of the client, which then gives up
		c, err := dial(10249)
		hold(c, err, "GET "+profile+" HTTP/1.1\r\nHost: node\r\n\r\n")
		resp, err := client.Get("http://node" + profile)
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusInternalServerError {
				break
			}
			err = fmt.Errorf("%s", resp.Status)
		}
		if time.Now().After(end) {
			t.Fatalf("no profile is taken: %v", err)
		}
	}
	n.endpoints(3)
	if err := n.stop(syscall.SIGTERM); err != nil {
		t.Errorf("the end: %v\n%s", err, n.log)
	}
}

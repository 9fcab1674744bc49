package testnet

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/lab/vm"
)

// guestEnv is set in the guest of TestGuestIsAHostOfTheLab.
const guestEnv = "SLUICE_TESTNET_GUEST"

func guestAddrs() []netip.Addr {
	return []netip.Addr{netip.MustParseAddr("192.168.9.2"), netip.MustParseAddr("fd00:9::2")}
}

// serveInGuest joins the lab and serves until the guest ends.
func serveInGuest() error {
	if err := Join("vec0", guestAddrs()...); err != nil {
		return err
	}
	ns, err := os.Open(threadNetns)
	if err != nil {
		return err
	}
	h, err := hostIn("guest", ns)
	if err != nil {
		return err
	}
	for _, a := range guestAddrs() {
		for _, network := range []string{"tcp", "udp"} {
			if _, err := h.Serve(network, netip.AddrPortFrom(a, 80), "guest"); err != nil {
				return err
			}
		}
	}
	select {}
}

func TestGuestIsAHostOfTheLab(t *testing.T) {
	if vm.Inside() != "" {
		t.Skip("this is a guest")
	}
	if _, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0); err != nil {
		testenv.Require(t, fmt.Errorf("tap devices: %w", err))
	}
	kernel, err := vm.Cached("6.12")
	if err == nil && kernel == "" {
		err = errors.New("the kernel is not built: make vm-kernels")
	}
	testenv.Require(t, err)
	lab, err := New(netip.MustParseAddr("192.168.9.1"), netip.MustParseAddr("fd00:9::1"))
	if err != nil {
		t.Fatal(err)
	}
	defer lab.Close()
	client, err := lab.AddHost("client", netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("fd00:1::2"))
	if err != nil {
		t.Fatal(err)
	}
	guest, tap, err := lab.AddGuest("guest", guestAddrs()...)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var log Log
	ended := make(chan error, 1)
	go func() {
		ended <- lab.Node.Do(func() error {
			_, err := vm.Run(ctx, vm.Job{Kernel: kernel, Tap: tap, Args: []string{"/proc/self/exe"}, Env: append(os.Environ(), guestEnv+"=1"), Out: &log})
			return err
		})
	}()
	defer func() {
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("%v\n%s", err, &log)
		}
	}()
	for _, a := range guest.Addrs {
		for _, network := range []string{"tcp", "udp"} {
			to := netip.AddrPortFrom(a, 80)
			got, err := client.Ask(network, to, time.Second)
			for end := time.Now().Add(AnswerTimeout); err != nil && time.Now().Before(end); {
				got, err = client.Ask(network, to, time.Second) // it boots
			}
			if err != nil || got.Server != "guest" || got.Client.Addr() != client.Addr(a) {
				t.Fatalf("%s %s: %+v, %v\n%s", network, to, got, err, &log)
			}
		}
		echoes(t, client, netip.AddrPortFrom(a, 80))
	}
}

// echoes sends so much that the link has large segments and lost packets to deal with.
func echoes(t *testing.T, client *Host, to netip.AddrPort) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), AnswerTimeout)
	defer cancel()
	c, err := client.Dial(ctx, "tcp", to)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	deadline, _ := ctx.Deadline()
	if err := c.SetDeadline(deadline); err != nil {
		t.Fatal(err)
	}
	sent := make([]byte, 4<<20)
	_, _ = rand.Read(sent)
	greeting := fmt.Sprintf("guest %s\n", c.LocalAddr())
	received := make([]byte, len(greeting)+len(sent))
	wrote := make(chan error, 1)
	go func() {
		_, err := c.Write(sent)
		wrote <- err
	}()
	if _, err := io.ReadFull(c, received); err != nil || !bytes.Equal(received, append([]byte(greeting), sent...)) {
		t.Errorf("%s: got other bytes than were sent, or %v", to, err)
	}
	if err := <-wrote; err != nil {
		t.Errorf("%s: %v", to, err)
	}
}

package vm

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/ipvs"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// TestIPVSBalancesConnectionsByWeight runs TestGuestIPVS on every kernel.
func TestIPVSBalancesConnectionsByWeight(t *testing.T) {
	eachKernel(t, func(t *testing.T, kernel string) {
		code, out := run(t, Job{Kernel: kernel, Args: []string{self(t), "-test.v", "-test.run", "^TestGuestIPVS$"}})
		if code != 0 || !strings.Contains(out, "--- PASS: TestGuestIPVS/") {
			t.Errorf("exit code %d\n%s", code, out)
		}
		t.Logf("%s", out)
	})
}

// TestGuestIPVS is what the test above runs: two Pods behind a virtual server, weights 3 and 1, in TCP and UDP, IPv4
// and IPv6.
func TestGuestIPVS(t *testing.T) {
	if Inside() == "" {
		t.Skip("for another test")
	}
	if !testnet.Inside() {
		code, err := testnet.Reexec()
		if err != nil || code != 0 {
			t.Fatal(code, err)
		}
		fmt.Println("--- PASS: TestGuestIPVS/ in namespaces")
		return
	}
	addr := netip.MustParseAddr
	lab, err := testnet.New(addr("192.168.0.1"), addr("fd00:192::1"))
	if err != nil {
		t.Fatal(err)
	}
	defer lab.Close()
	var pods []*testnet.Host
	for i := 1; i <= 2; i++ {
		p, err := lab.AddHost(fmt.Sprint("p", i), addr(fmt.Sprint("10.244.0.", i)), addr(fmt.Sprint("fd00:10:244::", i)))
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range p.Addrs {
			for _, network := range []string{"tcp", "udp"} {
				s, err := p.Serve(network, netip.AddrPortFrom(a, 9000), p.Name)
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
			}
		}
		pods = append(pods, p)
	}
	client, err := lab.AddHost("client", addr("198.51.100.9"), addr("2001:db8::9"))
	if err != nil {
		t.Fatal(err)
	}
	var handle *ipvs.Handle
	err = lab.Node.Do(func() (err error) {
		if err := netlink.LinkAdd(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: "vips"}}); err != nil {
			return err
		}
		handle, err = ipvs.New("")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer handle.Close()
	for _, vip := range []string{"10.96.0.10", "fd00:10:96::a"} {
		if err := lab.Node.AddAddr("vips", addr(vip)); err != nil {
			t.Fatal(err)
		}
		for network, protocol := range map[string]uint16{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP} {
			t.Run(network+" "+vip, func(t *testing.T) {
				service := &ipvs.Service{Address: addr(vip).AsSlice(), Protocol: protocol, Port: 80, SchedName: "wrr",
					AddressFamily: unix.AF_INET, Netmask: 0xffffffff}
				if addr(vip).Is6() {
					service.AddressFamily, service.Netmask = unix.AF_INET6, 128
				}
				if err := handle.NewService(service); err != nil {
					t.Fatal("add the virtual server:", err)
				}
				for i, p := range pods {
					d := &ipvs.Destination{Address: p.Addr(addr(vip)).AsSlice(), Port: 9000, Weight: []int{3, 1}[i]}
					if err := handle.NewDestination(service, d); err != nil {
						t.Fatal("add a real server:", err)
					}
				}
				const each = 25
				count := map[string]int{}
				for range 4 * each {
					got, err := client.Ask(network, netip.AddrPortFrom(addr(vip), 80), testnet.AnswerTimeout)
					if err != nil {
						t.Fatal(err)
					}
					if got.Client.Addr() != client.Addr(addr(vip)) {
						t.Fatalf("the client is seen as %s", got.Client)
					}
					count[got.Server]++
				}
				// In turn and by one CPU: not one connection more or less, but that a UDP client may get a port that
				// another one had, and with it its connection.
				near := func(got, want int) bool { return got == want || network == "udp" && got >= want-5 && got <= want+5 }
				if !near(count["p1"], 3*each) || !near(count["p2"], each) {
					t.Errorf("connections %v, weights 3 and 1", count)
				}
				destinations, err := handle.GetDestinations(service)
				if err != nil || len(destinations) != 2 {
					t.Fatalf("%v, %v", destinations, err)
				}
				for _, d := range destinations {
					// Not the statistics, which the kernel updates only every two seconds.
					if got := d.ActiveConnections + d.InactiveConnections; !near(got, each*d.Weight) || d.Port != 9000 {
						t.Errorf("the kernel knows %d connections of %+v, want %d", got, d, each*d.Weight)
					}
				}
			})
		}
	}
}

// TestKernelHasConfiguredOptions reads the configuration that the kernel was built with.
func TestKernelHasConfiguredOptions(t *testing.T) {
	eachKernel(t, func(t *testing.T, kernel string) {
		code, out := run(t, sh(kernel, "zcat /proc/config.gz"))
		if code != 0 {
			t.Fatalf("%d\n%s", code, out)
		}
		series, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(filepath.Dir(kernel)), "linux-"), "_")
		if err := checkOptions(series, []byte(out)); err != nil {
			t.Error(err)
		}
		kept, err := os.ReadFile(filepath.Join(filepath.Dir(kernel), "config"))
		if err != nil || string(kept) != out {
			t.Errorf("the configuration beside the kernel is not the kernel's: %v", err)
		}
	})
}

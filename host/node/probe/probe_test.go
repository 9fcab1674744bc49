package probe

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// The tests run in their own network namespace, so that they do not change the host's settings.
func TestMain(m *testing.M) { testnet.Main(m) }

// tree creates a root directory with these files.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func kubeProxyDefaults() Conntrack {
	return Conntrack{MaxPerCore: 32768, Min: 131072, TCPEstablishedTimeout: 24 * time.Hour, TCPCloseWaitTimeout: time.Hour}
}

const table = "net.netfilter.nf_conntrack_"

func TestConntrackSettingsMatchKubeProxy(t *testing.T) {
	for name, c := range map[string]struct {
		cpus int
		in   Conntrack
		want map[string]int
	}{
		"the defaults on 2 CPUs: min": {2, kubeProxyDefaults(), map[string]int{
			table + "max": 131072, hashSize: 32768, table + "tcp_timeout_established": 86400, table + "tcp_timeout_close_wait": 3600,
		}},
		"the defaults on 8 CPUs: maxPerCore": {8, kubeProxyDefaults(), map[string]int{
			table + "max": 262144, hashSize: 65536, table + "tcp_timeout_established": 86400, table + "tcp_timeout_close_wait": 3600,
		}},
		"maxPerCore 0 disables min": {8, Conntrack{Min: 131072}, map[string]int{}},
		"other settings": {1, Conntrack{TCPBeLiberal: true, UDPTimeout: 5 * time.Second, UDPStreamTimeout: time.Minute}, map[string]int{
			table + "udp_timeout": 5, table + "udp_timeout_stream": 60, table + "tcp_be_liberal": 1,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			got := map[string]int{}
			for _, s := range (Host{CPUs: c.cpus}).ConntrackSettings(c.in) {
				got[s.Name] = s.Want
				if s.Impact == "" {
					t.Errorf("%s has no impact", s.Name)
				}
			}
			if len(got) != len(c.want) {
				t.Errorf("got %v", got)
			}
			for name, want := range c.want {
				if got[name] != want {
					t.Errorf("%s: %d, want %d", name, got[name], want)
				}
			}
		})
	}
}

func TestSetWritesOnlyDifferences(t *testing.T) {
	for name, c := range map[string]struct {
		is, want int
		atLeast  bool
		after    string
		changed  bool
	}{
		"too small":            {100, 200, true, "200", true},
		"larger is kept":       {300, 200, true, "300\n", false},
		"equal":                {200, 200, false, "200\n", false},
		"a timeout is lowered": {432000, 86400, false, "86400", true},
		"a negative number":    {0, -999, false, "-999", true},
		"equal with AtLeast":   {200, 200, true, "200\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			root := tree(t, map[string]string{"proc/sys/net/x_y": itoa(c.is) + "\n"})
			previous, changed, err := Host{Root: root}.Set(Setting{Name: "net.x_y", Want: c.want, AtLeast: c.atLeast})
			if err != nil || previous != c.is || changed != c.changed {
				t.Errorf("previous %d, changed %v, %v", previous, changed, err)
			}
			text, err := os.ReadFile(filepath.Join(root, "proc/sys/net/x_y"))
			if err != nil || !strings.HasPrefix(string(text), strings.TrimSuffix(c.after, "\n")) || c.changed != (string(text) != itoa(c.is)+"\n") {
				t.Errorf("file %q, %v", text, err)
			}
		})
	}
}

// A table that somebody has made larger was made so on purpose.
func TestTheConntrackTableIsNeverMadeSmaller(t *testing.T) {
	root := tree(t, map[string]string{"proc/sys/net/netfilter/nf_conntrack_max": "9000000\n", hashSize: "2250000\n", "proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established": "432000\n",
		"proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait": "60\n"})
	h := Host{Root: root, CPUs: 8}
	for _, s := range h.ConntrackSettings(kubeProxyDefaults()) {
		_, changed, err := h.Set(s)
		if size := s.Name == table+"max" || s.Name == hashSize; err != nil || changed == size {
			t.Errorf("%s: changed %v, %v", s.Name, changed, err)
		}
	}
	for file, want := range map[string]string{"proc/sys/net/netfilter/nf_conntrack_max": "9000000\n", hashSize: "2250000\n"} {
		if text, err := os.ReadFile(filepath.Join(root, file)); err != nil || string(text) != want {
			t.Errorf("%s: %q, %v", file, text, err)
		}
	}
}

func itoa(n int) string { return strconv.Itoa(n) }

// This test sets the real kernel's settings of this network namespace.
func TestSetOnRealKernel(t *testing.T) {
	if _, err := ConntrackEntries(); err != nil {
		t.Fatal(err)
	}
	for _, s := range (Host{CPUs: 1}).ConntrackSettings(Conntrack{TCPEstablishedTimeout: 123 * time.Second, UDPTimeout: 7 * time.Second, UDPStreamTimeout: 77 * time.Second, TCPBeLiberal: true}) {
		if _, changed, err := (Host{}).Set(s); err != nil || !changed {
			t.Errorf("%s: changed %v, %v", s.Name, changed, err)
		}
		if is, ok, err := (Host{}).read(s); err != nil || !ok || is != s.Want {
			t.Errorf("%s: is %d, ok %v, %v", s.Name, is, ok, err)
		}
		if _, changed, err := (Host{}).Set(s); err != nil || changed {
			t.Errorf("%s: again: changed %v, %v", s.Name, changed, err)
		}
	}
}

// nf_conntrack_max is read-only in other network namespaces than the initial one.
func TestSetErrorNamesBothValues(t *testing.T) {
	is, err := readInt("/proc/sys/net/netfilter/nf_conntrack_max")
	if err != nil {
		t.Fatal(err)
	}
	s := Setting{Name: table + "max", Want: is + 1, AtLeast: true}
	_, _, err = Host{}.Set(s)
	if !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "set "+s.Name+" from "+itoa(is)+" to "+itoa(is+1)) {
		t.Errorf("got %v", err)
	}
	s.Want = is
	if _, _, err := (Host{}).Set(s); err != nil {
		t.Errorf("value already set: %v", err)
	}
}

func TestReadOnlyProcFailsOnlyIfValueDiffers(t *testing.T) {
	root := tree(t, map[string]string{"proc/sys/net/x": "1\n", "proc/sys/net/y": "2\n"})
	proc := filepath.Join(root, "proc/sys")
	if err := unix.Mount(proc, proc, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err) // the tests run in their own mount namespace
	}
	defer func() {
		if err := unix.Unmount(proc, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	if err := unix.Mount("", proc, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	h := Host{Root: root}
	if _, _, err := h.Set(Setting{Name: "net.x", Want: 1}); err != nil {
		t.Errorf("value already set: %v", err)
	}
	_, _, err := h.Set(Setting{Name: "net.y", Want: 1})
	if !errors.Is(err, unix.EROFS) || !strings.Contains(err.Error(), "set net.y from 2 to 1") || !strings.Contains(err.Error(), "mounted read-only") {
		t.Errorf("got %v", err)
	}
}

func TestSetMissingOrNonNumericSetting(t *testing.T) {
	h := Host{Root: tree(t, map[string]string{"proc/sys/net/x": "many\n"})}
	if _, _, err := h.Set(Setting{Name: "net.nowhere", Want: 1}); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "modprobe") {
		t.Errorf("got %v", err)
	}
	if _, _, err := h.Set(Setting{Name: "net.x", Want: 1}); err == nil || !strings.Contains(err.Error(), `"many`) {
		t.Errorf("got %v", err)
	}
}

func TestOOMScoreAdj(t *testing.T) {
	root := tree(t, map[string]string{oomFile: "0\n"})
	if err := (Host{Root: root}).SetOOMScoreAdj(-999); err != nil {
		t.Fatal(err)
	}
	if is, err := readInt(filepath.Join(root, oomFile)); is != -999 || err != nil {
		t.Errorf("is %d, %v", is, err)
	}
	is, err := readInt(oomFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := (Host{}).SetOOMScoreAdj(is); err != nil {
		t.Errorf("value already set: %v", err)
	}
}

package kubeproxy

import (
	"bufio"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// hasTrustedListener reports whether a TCP socket of this process's user or root's, in the network namespace of the calling
// thread, listens on a port of 127.0.0.1. A socket belongs to the user that created it.
func hasTrustedListener(proc string, port uint16) (bool, error) {
	for _, table := range []string{"tcp", "tcp6"} {
		f, err := os.Open(filepath.Join(proc, "thread-self/net", table))
		if errors.Is(err, fs.ErrNotExist) { // the kernel has no IPv6
			continue
		}
		if err != nil {
			return false, err
		}
		found, err := trustedListener(f, port, os.Geteuid())
		f.Close()
		if found || err != nil {
			return found, err
		}
	}
	return false, nil
}

// trustedListener reads /proc/net/tcp, as proc_pid_net(5) describes it: the local address is the second field, the state
// the fourth, the user the eighth. Listening sockets come first.
func trustedListener(table io.Reader, port uint16, self int) (bool, error) {
	const listening = "0A"
	loopback := []string{ // addresses at which 127.0.0.1 reaches it, as numbers of 32 bits in the machine's byte order
		"00000000", "00000000000000000000000000000000",
		"0100007F", "0000000000000000FFFF00000100007F", "7F000001", "00000000000000000000FFFF7F000001",
	}
	lines := bufio.NewScanner(table)
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) < 8 || f[3] != listening {
			continue
		}
		addr, hex, _ := strings.Cut(f[1], ":")
		at, err := strconv.ParseUint(hex, 16, 16)
		uid, uerr := strconv.Atoi(f[7])
		if err != nil || uerr != nil || uint16(at) != port || !slices.Contains(loopback, addr) {
			continue
		}
		if uid == 0 || uid == self {
			return true, nil
		}
	}
	return false, lines.Err()
}

// Package writerlock is a lock that one process of a network namespace has at a time: an nf_tables table with an owner,
// which is the netlink socket that created it (NFT_TABLE_F_OWNER, since Linux 5.12). Only a process with CAP_NET_ADMIN in
// the namespace can create it, no other process can change or delete it, not even with `nft flush ruleset`, and the kernel
// deletes it with the socket, however the process ends. It belongs to the network namespace, so that processes in
// different containers and on the host exclude each other.
package writerlock

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/util/nfnl"
)

// lock is the table. It has no chains.
var lock = nfnl.Table{Family: unix.NFPROTO_IPV4, Name: "sluice-lock"}

// HeldError is returned while another process has the lock.
type HeldError struct {
	// Holder describes the process: "process 17", with its PID namespace if that is another one.
	Holder string
}

func (e *HeldError) Error() string {
	return fmt.Sprintf("table %s belongs to %s", lock, e.Holder)
}

// Acquire takes the lock in the network namespace of a file descriptor (zero is the current one), until release is called
// or the process ends. It never waits.
func Acquire(netns int) (release func(), err error) {
	conn, err := nfnl.Open(netns, nfnl.DefaultSendBuffer)
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", nfnl.Hint(err))
	}
	if err = take(conn); err != nil {
		conn.Close()
		return nil, err
	}
	return func() { conn.Close() }, nil
}

func take(conn *nfnl.Conn) error {
	for {
		err := create(conn, false)
		if errors.Is(err, unix.EEXIST) { // a table without an owner is no lock, such as one that was restored from a dump
			err = create(conn, true)
		}
		if !errors.Is(err, unix.EPERM) {
			return err
		}
		// Another socket owns it, or we lack CAP_NET_ADMIN.
		owner, comment, rerr := conn.TableOwner(lock)
		switch {
		case errors.Is(rerr, unix.ENOENT): // released meanwhile
		case rerr == nil && owner != 0:
			return &HeldError{describe(comment)}
		default:
			return err
		}
	}
}

// create creates the table, in the place of one without an owner if replace is set.
func create(conn *nfnl.Conn, replace bool) error {
	b := nfnl.NewBatch(conn)
	if replace {
		b.DeleteTable(lock)
	}
	b.NewTable(unix.NLM_F_EXCL, lock, nfnl.TableOwner, ownComment())
	return b.Commit()
}

const commentPrefix = "held by sluice, "

// ownComment is what `nft list table ip sluice-lock` shows: the process ID, and the PID namespace in which it is valid.
func ownComment() string {
	return fmt.Sprintf("%sprocess %d in %s", commentPrefix, os.Getpid(), pidNamespace())
}

func pidNamespace() string {
	name, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return "an unknown PID namespace"
	}
	return name
}

// describe returns the holder that a comment names.
func describe(comment string) string {
	text, ok := strings.CutPrefix(comment, commentPrefix)
	if !ok {
		return fmt.Sprintf("another program (%q)", comment)
	}
	process, namespace, _ := strings.Cut(text, " in ")
	if namespace != pidNamespace() {
		return process + " of another PID namespace, such as a Pod's"
	}
	return process
}

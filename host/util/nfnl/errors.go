package nfnl

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

var (
	// ErrReplyLost means that not all of the kernel's replies arrived: a transaction may or may not have been committed.
	ErrReplyLost = errors.New("the kernel's reply was lost, the state is unknown")
	// ErrInterrupted means that the ruleset changed during a dump.
	ErrInterrupted = errors.New("the ruleset changed while it was read")
)

// Hint adds a remedy to errors that operators can do something about.
func Hint(err error) error {
	switch err {
	case unix.EPERM, unix.EACCES:
		return fmt.Errorf("%w: need CAP_NET_ADMIN in the network namespace", err)
	case unix.EMSGSIZE:
		return fmt.Errorf("%w: one Service does not fit the socket buffer, raise net.core.wmem_max", err)
	case unix.EPROTONOSUPPORT, unix.EAFNOSUPPORT, unix.EOPNOTSUPP:
		return fmt.Errorf("%w: the kernel has no nf_tables for this family (CONFIG_NF_TABLES, modprobe nf_tables)", err)
	}
	return err
}

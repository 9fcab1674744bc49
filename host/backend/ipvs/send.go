package ipvs

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// send sends one message. When it fails, what is there tells whether it took effect all the same; if not, it is sent
// once more.
func (b *Backend) send(o op) error {
	var first error
	for {
		b.stats.Messages++
		b.stats.Elements++
		err := b.ipvs.do(o)
		if err == nil {
			break
		}
		took, known := b.tookEffect(o)
		if took {
			break
		}
		if first != nil {
			// The mirror is still right, unless nobody knows, or it was wrong before.
			b.stateSuspect = b.stateSuspect || !known || contradictsState(o, err)
			return fmt.Errorf("%s: %w", o, explainOp(o, err))
		}
		first = err
	}
	if first != nil {
		b.log.Debug("sent once more", "message", o.String(), "err", first)
	}
	return nil
}

// contradictsState tells whether an error says that the kernel has something else than the mirror.
func contradictsState(o op, err error) bool {
	return errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ESRCH) || o.kind > opDelServer && errors.Is(err, unix.ENOENT)
}

// tookEffect tells whether a message has taken effect, and whether that could be found out.
func (b *Backend) tookEffect(o op) (took, known bool) {
	switch o.kind {
	case opAddServer, opSetServer:
		v, ok, err := b.ipvs.getServer(o.key)
		return err == nil && ok && v == o.serverConfig, err == nil
	case opDelServer:
		_, ok, err := b.ipvs.getServer(o.key)
		return err == nil && !ok, err == nil
	}
	list, err := b.ipvs.listDestinations(o.key)
	if err != nil {
		return false, false
	}
	for _, m := range list {
		if m.addr == o.destination.addr {
			return o.kind != opDelDestination && m.destination == o.destination && !m.foreign, true
		}
	}
	return o.kind == opDelDestination, true
}

// changeAddr does something to an address of the link, a second time when it fails.
func (b *Backend) changeAddr(what string, a netip.Addr, f func(netip.Addr) error) error {
	if err := b.ensureLink(); err != nil {
		return err
	}
	b.stats.Messages++
	b.stats.Elements++
	err := f(a)
	if err != nil {
		b.stats.linkReady = false
		if err := b.ensureLink(); err != nil {
			return err
		}
		b.stats.Messages++
		err = f(a)
	}
	switch {
	case err == nil:
		return nil
	case a.Is6() && (errors.Is(err, unix.EACCES) || errors.Is(err, unix.EOPNOTSUPP)):
		err = fmt.Errorf("%w: IPv6 is disabled there (net.ipv6.conf.all.disable_ipv6, or the link's own)", err)
	default:
		err = withHint(err)
	}
	return fmt.Errorf("%s %s of link %s: %w", what, a, b.o.Link, err)
}

// ensureLink looks once an Apply whether the link is there and up.
func (b *Backend) ensureLink() error {
	if b.stats.linkReady {
		return nil
	}
	made, err := b.links.ensureLink()
	if made {
		b.stats.Messages++
	}
	b.stats.linkReady = err == nil
	return err
}

// explainOp says more of an error that an op had.
func explainOp(o op, err error) error {
	switch {
	case o.kind <= opSetServer && errors.Is(err, unix.ENOENT):
		return fmt.Errorf("%w: the kernel has no scheduler %s (modprobe ip_vs_%s)", err, o.scheduler, o.scheduler)
	case errors.Is(err, unix.EAFNOSUPPORT):
		return fmt.Errorf("%w: the kernel has no IPVS for this family (CONFIG_IP_VS_IPV6) or protocol", err)
	}
	return withHint(err)
}

// withHint adds what to do about the errors that operators meet.
func withHint(err error) error {
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return fmt.Errorf("%w: need CAP_NET_ADMIN in the network namespace", err)
	}
	return err
}

func compareKeys(a, b serverKey) int {
	return cmp.Or(a.addr.Compare(b.addr), cmp.Compare(a.port, b.port), cmp.Compare(a.proto, b.proto), cmp.Compare(a.mark, b.mark), boolToInt(a.v6)-boolToInt(b.v6))
}

func boolToInt(v bool) int {
	if v {
		return 1
	}
	return 0
}

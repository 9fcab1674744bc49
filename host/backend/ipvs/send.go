package ipvs

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// send sends one request to IPVS. If it fails, send reads back whether it took effect nevertheless; if not, it tries
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
			// b.state is still right, unless the result is unknown or b.state was wrong before.
			b.stateSuspect = b.stateSuspect || !known || contradictsState(o, err)
			return fmt.Errorf("%s: %w", o, explainOp(o, err))
		}
		first = err
	}
	if first != nil {
		b.log.Debug("request to IPVS failed once", "request", o.String(), "err", first)
	}
	return nil
}

// contradictsState reports whether an error means that the kernel's state differs from b.state.
func contradictsState(o op, err error) bool {
	return errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ESRCH) || o.kind > opDelServer && errors.Is(err, unix.ENOENT)
}

// tookEffect reports whether a request has taken effect, and whether that is known.
func (b *Backend) tookEffect(o op) (took, known bool) {
	switch o.kind {
	case opAddServer, opSetServer:
		c, ok, err := b.ipvs.getServer(o.key)
		return err == nil && ok && c == o.serverConfig, err == nil
	case opDelServer:
		_, ok, err := b.ipvs.getServer(o.key)
		return err == nil && !ok, err == nil
	}
	list, err := b.ipvs.listDestinations(o.key)
	if err != nil {
		return false, false
	}
	for _, d := range list {
		if d.addr == o.destination.addr {
			return o.kind != opDelDestination && d.destination == o.destination, true
		}
	}
	return o.kind == opDelDestination, true
}

// changeAddr adds or deletes an address of the link, and tries a second time if that fails.
func (b *Backend) changeAddr(what string, a netip.Addr, change func(netip.Addr) error) error {
	if err := b.ensureLink(); err != nil {
		return err
	}
	b.stats.Messages++
	b.stats.Elements++
	err := change(a)
	if err != nil {
		b.stats.linkReady = false
		if err := b.ensureLink(); err != nil {
			return err
		}
		b.stats.Messages++
		err = change(a)
	}
	switch {
	case err == nil:
		return nil
	case a.Is6() && (errors.Is(err, unix.EACCES) || errors.Is(err, unix.EOPNOTSUPP)):
		err = fmt.Errorf("%w: IPv6 is disabled (net.ipv6.conf.all.disable_ipv6, or that of the link)", err)
	default:
		err = withHint(err)
	}
	return fmt.Errorf("%s %s of link %s: %w", what, a, b.o.Link, err)
}

// ensureLink checks, once per Apply, that the link exists and is up.
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

// explainOp adds the likely cause to an error of IPVS.
func explainOp(o op, err error) error {
	switch {
	case o.kind <= opSetServer && errors.Is(err, unix.ENOENT):
		return fmt.Errorf("%w: the kernel has no scheduler %s (modprobe ip_vs_%s)", err, o.scheduler, o.scheduler)
	case errors.Is(err, unix.EAFNOSUPPORT):
		return fmt.Errorf("%w: the kernel's IPVS does not support this address family (CONFIG_IP_VS_IPV6) or protocol", err)
	}
	return withHint(err)
}

// withHint adds the remedy to errors that operators run into.
func withHint(err error) error {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return fmt.Errorf("%w: need CAP_NET_ADMIN in the network namespace", err)
	}
	return err
}

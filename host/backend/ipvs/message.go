package ipvs

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// do sends one message. When it fails, what is there tells whether it took effect all the same; if not, it is sent
// once more.
func (b *Backend) do(o op) error {
	var first error
	for {
		b.sent.Messages++
		b.sent.Elements++
		err := b.ipvs.do(o)
		if err == nil {
			break
		}
		took, known := b.took(o)
		if took {
			break
		}
		if first != nil {
			// The mirror is still right, unless nobody knows, or it was wrong before.
			b.unsure = b.unsure || !known || contradicts(o, err)
			return fmt.Errorf("%s: %w", o, explain(o, err))
		}
		first = err
	}
	if first != nil {
		b.log.Debug("sent once more", "message", o.String(), "err", first)
	}
	return nil
}

// contradicts tells whether an error says that the kernel has something else than the mirror.
func contradicts(o op, err error) bool {
	return errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ESRCH) || o.kind > delServer && errors.Is(err, unix.ENOENT)
}

// took tells whether a message has taken effect, and whether that could be found out.
func (b *Backend) took(o op) (took, known bool) {
	switch o.kind {
	case addServer, setServer:
		v, ok, err := b.ipvs.server(o.key)
		return err == nil && ok && v == o.service, err == nil
	case delServer:
		_, ok, err := b.ipvs.server(o.key)
		return err == nil && !ok, err == nil
	}
	list, err := b.ipvs.members(o.key)
	if err != nil {
		return false, false
	}
	for _, m := range list {
		if m.addr == o.member.addr {
			return o.kind != delMember && m.member == o.member && !m.foreign, true
		}
	}
	return o.kind == delMember, true
}

// address does something to an address of the link, a second time when it fails.
func (b *Backend) address(what string, a netip.Addr, f func(netip.Addr) error) error {
	if err := b.ensureLink(); err != nil {
		return err
	}
	b.sent.Messages++
	b.sent.Elements++
	err := f(a)
	if err != nil {
		b.sent.link = false
		if err := b.ensureLink(); err != nil {
			return err
		}
		b.sent.Messages++
		err = f(a)
	}
	switch {
	case err == nil:
		return nil
	case a.Is6() && (errors.Is(err, unix.EACCES) || errors.Is(err, unix.EOPNOTSUPP)):
		err = fmt.Errorf("%w: IPv6 is disabled there (net.ipv6.conf.all.disable_ipv6, or the link's own)", err)
	default:
		err = hint(err)
	}
	return fmt.Errorf("%s %s of link %s: %w", what, a, b.o.Link, err)
}

// ensureLink looks once an Apply whether the link is there and up.
func (b *Backend) ensureLink() error {
	if b.sent.link {
		return nil
	}
	made, err := b.links.ensure()
	if made {
		b.sent.Messages++
	}
	b.sent.link = err == nil
	return err
}

// explain says more of an error that an op had.
func explain(o op, err error) error {
	switch {
	case o.kind <= setServer && errors.Is(err, unix.ENOENT):
		return fmt.Errorf("%w: the kernel has no scheduler %s (modprobe ip_vs_%s)", err, o.scheduler, o.scheduler)
	case errors.Is(err, unix.EAFNOSUPPORT):
		return fmt.Errorf("%w: the kernel has no IPVS for this family (CONFIG_IP_VS_IPV6) or protocol", err)
	}
	return hint(err)
}

// hint adds what to do about the errors that operators meet.
func hint(err error) error {
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return fmt.Errorf("%w: need CAP_NET_ADMIN in the network namespace", err)
	}
	return err
}

func compareServers(a, b serverKey) int {
	return cmp.Or(a.addr.Compare(b.addr), cmp.Compare(a.port, b.port), cmp.Compare(a.proto, b.proto), cmp.Compare(a.mark, b.mark), boolToInt(a.v6)-boolToInt(b.v6))
}

func boolToInt(v bool) int {
	if v {
		return 1
	}
	return 0
}

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
	b.sent.Messages++
	b.sent.Elements++
	err := b.ipvs.do(o)
	if err == nil {
		return nil
	}
	if b.took(o) {
		return nil
	}
	b.sent.Messages++
	if again := b.ipvs.do(o); again != nil {
		return fmt.Errorf("%s: %w", o, explain(o, again))
	}
	b.log.Debug("sent once more", "message", o.String(), "err", err)
	return nil
}

// took tells whether a message has taken effect.
func (b *Backend) took(o op) bool {
	switch o.kind {
	case addServer, setServer:
		v, ok, err := b.ipvs.server(o.key)
		return err == nil && ok && v == o.service
	case delServer:
		_, ok, err := b.ipvs.server(o.key)
		return err == nil && !ok
	}
	list, err := b.ipvs.members(o.key)
	if err != nil {
		return false
	}
	for _, m := range list {
		if m.addr == o.member.addr {
			return o.kind != delMember && m.member == o.member && !m.foreign
		}
	}
	return o.kind == delMember
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
	if err != nil {
		return fmt.Errorf("%s %s of link %s: %w", what, a, b.o.Link, hint(err))
	}
	return nil
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

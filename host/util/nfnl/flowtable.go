package nfnl

import (
	"errors"

	"golang.org/x/sys/unix"
)

// Attributes of flowtables, from linux/netfilter/nf_tables.h, which golang.org/x/sys/unix lacks.
const (
	nftaFlowtableTable        = 1
	nftaFlowtableName         = 2
	nftaFlowtableHook         = 3
	nftaFlowtableHookNum      = 1
	nftaFlowtableHookPriority = 2
	nftaFlowtableHookDevs     = 3
	nftaDeviceName            = 1
)

// MaxFlowtableLinks is how many links a message about a flowtable can have (NFT_NETDEVICE_MAX).
const MaxFlowtableLinks = 256

// NewFlowtable appends the message that creates a flowtable at the ingress hook of links, or adds them to it.
func (b *Batch) NewFlowtable(t Table, name string, links []string) {
	b.flowtable(unix.NFT_MSG_NEWFLOWTABLE, unix.NLM_F_CREATE, t, "create flowtable", name, links)
}

// RemoveLinks appends the message that removes links from a flowtable.
func (b *Batch) RemoveLinks(t Table, name string, links []string) {
	b.flowtable(unix.NFT_MSG_DELFLOWTABLE, 0, t, "remove links from flowtable", name, links)
}

// DeleteFlowtable appends the message that deletes a flowtable.
func (b *Batch) DeleteFlowtable(t Table, name string) {
	b.flowtable(unix.NFT_MSG_DELFLOWTABLE, 0, t, "delete flowtable", name, nil)
}

func (b *Batch) flowtable(kind, flags uint16, t Table, verb, name string, links []string) {
	b.Message(kind, flags, t.Family, verb, name)
	b.PutString(nftaFlowtableTable, t.Name)
	b.PutString(nftaFlowtableName, name)
	if links != nil {
		hook := b.BeginNest(nftaFlowtableHook)
		b.PutUint32(nftaFlowtableHookNum, unix.NF_NETDEV_INGRESS)
		b.PutUint32(nftaFlowtableHookPriority, 0)
		devs := b.BeginNest(nftaFlowtableHookDevs)
		for _, l := range links {
			b.PutString(nftaDeviceName, l)
		}
		b.EndNest(devs)
		b.EndNest(hook)
	}
	b.End()
}

// Flowtable returns the links of a flowtable, and whether it exists.
func (c *Conn) Flowtable(t Table, name string) (links []string, exists bool, err error) {
	var m Encoder
	m.Begin(unix.NFT_MSG_GETFLOWTABLE, unix.NLM_F_ACK, c.NextSeq(), t.Family)
	m.PutString(nftaFlowtableTable, t.Name)
	m.PutString(nftaFlowtableName, name)
	m.End()
	err = c.Dump(m.Buf, func(b []byte) {
		exists = true
		for _, v := range Attrs(Attr(Attr(b[4:], nftaFlowtableHook), nftaFlowtableHookDevs)) {
			links = append(links, Text(v))
		}
	})
	if errors.Is(err, unix.ENOENT) {
		err = nil
	}
	return links, exists, err
}

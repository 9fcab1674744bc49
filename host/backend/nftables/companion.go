package nftables

import (
	"fmt"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/util/nfnl"
)

// companion is a small table beside that of mode ipvs.
type companion struct {
	tableReader
	family model.Family
}

// withCompanions calls f with the tables of a name, in both families.
func withCompanions(netns int, name string, f func([]*companion) error) error {
	conn, err := nfnl.Open(netns, nfnl.DefaultSendBuffer)
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	defer conn.Close()
	conn.AllowInconsistent = true // one process writes these tables
	var both []*companion
	for _, family := range []model.Family{model.IPv4, model.IPv6} {
		both = append(both, &companion{tableReader{nfnl.Table{Family: nfproto(family), Name: name}, conn}, family})
	}
	return f(both)
}

func (t *companion) exists() (exists bool, err error) {
	err = t.conn.Tables(t.Family, func(found nfnl.Table, _ string) { exists = exists || found == t.Table })
	return exists, err
}

// deleteIfExists appends the message that deletes the table, if there is one.
func (t *companion) deleteIfExists(out *nfnl.Batch) error {
	exists, err := t.exists()
	if exists {
		out.DeleteTable(t.Table)
	}
	return err
}

// putChain appends the messages that create a chain with its rules.
func (t *companion) putChain(out *nfnl.Batch, c chain) error {
	out.NewChain(c.of(t.Table))
	rules, _, err := c.encode()
	for _, r := range rules {
		out.NewRule(t.Table, c.name, r)
	}
	return err
}

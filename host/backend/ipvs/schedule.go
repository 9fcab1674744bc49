package ipvs

import (
	"slices"

	"github.com/sluice-proxy/sluice/host/core/plan"
)

// unweighted are the schedulers that do as others do, with a weight.
var unweighted = map[string]string{"rr": "wrr", "lc": "wlc"}

// does reports whether a virtual server balances as with another configuration: rr as wrr if all weights above zero are the same.
func (c serverConfig) does(want serverConfig, endpoints []plan.Endpoint) bool {
	if c == want {
		return true
	}
	if unweighted[c.scheduler] != want.scheduler || c.flags != want.flags {
		return false
	}
	var weight uint16
	for _, m := range endpoints {
		if m.Weight > 0 && weight > 0 && m.Weight != weight {
			return false
		}
		weight = max(weight, m.Weight)
	}
	return true
}

// schedulerChange is a virtual server that is to have another scheduler.
type schedulerChange struct {
	update *frontendUpdate
	config serverConfig
	key    serverKey
	server *virtualServer
}

// setSchedulers changes the schedulers and flags of virtual servers. New connections are held meanwhile.
func (b *Backend) setSchedulers(updates []*frontendUpdate) {
	var changes []schedulerChange
	for _, u := range updates {
		for i := range u.servers {
			su := &u.servers[i]
			s := b.state.servers[su.key]
			if su.wanted && s != nil && !(u.failed && su.deferWeight) && !s.does(su.config, su.destinations) {
				changes = append(changes, schedulerChange{u, su.config, su.key, s})
			}
		}
	}
	for some := range slices.Chunk(changes, heldAtOnce) {
		var keys []serverKey
		for _, c := range some {
			if c.server.scheduler != c.config.scheduler {
				keys = append(keys, c.key)
			}
		}
		release, err := b.holdNew(keys)
		if err != nil {
			b.log.Warn("new connections are rejected while schedulers change", "err", err)
		}
		for _, c := range some {
			if err := b.send(op{kind: opSetServer, key: c.key, serverConfig: c.config}); err != nil {
				c.update.addError(err)
			} else {
				c.server.serverConfig = c.config
			}
		}
		release()
	}
}

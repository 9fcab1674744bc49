package engine

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// summaryInterval is for how long updates are added up before a line of the log tells of them. Each one has a line at debug
// level.
const summaryInterval = time.Minute

// updates are the updates of the data plane that no line at info level has told of.
type updates struct {
	updates, frontends, messages int
	longest                      time.Duration
	until                        time.Time // end of the interval; zero: there was none
	// causes are the changes of the cluster that the next update is for, by kind.
	causes [model.LoadReadKind + 1]int
}

var causeNames = [...]string{
	model.Synced: "initial state", model.ServiceKind: "Service", model.SliceKind: "EndpointSlice", model.NodeKind: "Node", model.ServiceCIDRKind: "ServiceCIDR",
	model.NodesPartialKind: "Nodes read", model.PodKind: "Pod", model.PodsReadKind: "Pods read", model.PodsOnDemandKind: "Pods on demand",
	model.NamespaceKind: "Namespace", model.NodeLabelsKind: "labels of Nodes read", model.NamespaceLabelsKind: "labels of namespaces read",
	model.RouteKind: "route", model.LoadKind: "EndpointLoad", model.LoadReadKind: "load read",
}

// received adds changes of the cluster to the causes of the next update.
func (u *updates) received(changes []model.Change) {
	for i := range changes {
		u.causes[changes[i].Kind]++
	}
}

// why describes the causes of an update: changes of the cluster, or, without any, policies: the answer of a plugin, or the time.
func (u *updates) why() string {
	var out []string
	for kind, n := range u.causes {
		if n > 0 {
			out = append(out, fmt.Sprintf("%s %d", causeNames[kind], n))
		}
	}
	if len(out) == 0 {
		return "policy"
	}
	return strings.Join(out, ", ")
}

// add adds an update.
func (u *updates) add(frontends, messages int, took time.Duration, now time.Time) {
	if u.updates == 0 {
		u.until = now.Add(summaryInterval)
	}
	u.updates++
	u.frontends += frontends
	u.messages += messages
	u.longest = max(u.longest, took)
}

// summarize logs the updates of an interval that has ended. It returns the end of the current one, zero if there is none.
func (u *updates) summarize(log *slog.Logger, now time.Time) time.Time {
	if u.updates == 0 || now.Before(u.until) {
		return u.until
	}
	log.Info("updates", "updates", u.updates, "frontends", u.frontends, "netlink_messages", u.messages, "longest", u.longest, "interval", summaryInterval)
	*u = updates{causes: u.causes}
	return time.Time{}
}

// logUpdate logs an update at debug level: what has changed, and why.
func (e *Engine) logUpdate(d *plan.Delta, messages int, took time.Duration) {
	if e.Log.Enabled(context.Background(), slog.LevelDebug) {
		e.Log.Debug("synced services", "services", services(d), "frontends", len(d.Changes), "what", describe(d), "why", e.updates.why(),
			"netlink_messages", messages, "duration", took)
	}
}

// Describe names the first Services of a delta, and says what has changed of its first frontends.
func Describe(d *plan.Delta) (of, what string) { return services(d), describe(d) }

// maxDescribed bounds the frontends of an update that are described.
const maxDescribed = 3

// describe says what has changed of the first frontends of a delta.
func describe(d *plan.Delta) string {
	var out []string
	for i := range d.Changes[:min(len(d.Changes), maxDescribed)] {
		c := &d.Changes[i]
		switch {
		case c.Old == nil:
			out = append(out, fmt.Sprintf("%s added with %d endpoints", c.Key, len(c.New.Pool.Endpoints)))
		case c.New == nil:
			out = append(out, fmt.Sprintf("%s removed", c.Key))
		default:
			out = append(out, c.Key.String()+" "+describeFrontend(c.Old, c.New))
		}
	}
	if more := len(d.Changes) - maxDescribed; more > 0 {
		out = append(out, fmt.Sprintf("%d more", more))
	}
	return strings.Join(out, "; ")
}

func describeFrontend(before, now *plan.Frontend) string {
	added, removed, weighted := compareEndpoints(&before.Pool, &now.Pool)
	if before.Outside != nil && now.Outside != nil {
		a, r, w := compareEndpoints(before.Outside, now.Outside)
		added, removed, weighted = max(added, a), max(removed, r), max(weighted, w)
	}
	var out []string
	for _, c := range []struct {
		n    int
		what string
	}{{added, "added"}, {removed, "removed"}, {weighted, "with another weight or phase"}} {
		if c.n > 0 {
			out = append(out, fmt.Sprintf("%d endpoints %s", c.n, c.what))
		}
	}
	if len(out) == 0 {
		return "other properties"
	}
	return strings.Join(out, ", ")
}

func compareEndpoints(before, now *plan.Pool) (added, removed, changed int) {
	old := make(map[netip.AddrPort]*plan.Endpoint, len(before.Endpoints))
	for i := range before.Endpoints {
		old[before.Endpoints[i].Addr] = &before.Endpoints[i]
	}
	for i := range now.Endpoints {
		n := &now.Endpoints[i]
		switch o := old[n.Addr]; {
		case o == nil:
			added++
		case o.Weight != n.Weight || o.Phase != n.Phase:
			changed++
		}
	}
	return added, len(before.Endpoints) - (len(now.Endpoints) - added), changed
}

package kube

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// Intervals at which one node polls the other Nodes. They grow with the number of Nodes, so that the load on the API
// server grows with the cluster and not with its square: at 5,000 Nodes each node lists every 30 minutes.
const (
	listIntervalPerNode = 360 * time.Millisecond // between two lists, times the number of Nodes
	minListInterval     = 10 * time.Second
	fullListEvery       = 12 // one list in so many is of whole Nodes, the others of metadata

	// A list for labels that policies see from now on: every node needs it at the same moment, and policies wait for it.
	labelsJitterPerNode = 4 * time.Millisecond
	maxLabelsJitter     = 20 * time.Second
	// Of the interval between two lists, the part that must pass between two for labels: whoever may choose the labels of a
	// policy can have nodes list this much more often.
	labelsShare = 6
)

// nodePoller keeps zone, CPU, readiness and labels of the other Nodes, which policies may need. Between full lists it lists
// metadata only (a quarter of the API server's work and a tenth of the bytes), and looks up single Nodes: new ones, for their
// CPU, and those that a slice names and that are unknown or known in another zone. It does not watch: a watch would send 10 KiB
// each time that any kubelet updates its Node's status.
type nodePoller struct {
	source *Source
	lister *lister
	epoch  int // of the lister's watchState

	labels          *labelsToRead
	labelsNotBefore time.Time // of the next list for labels

	mu          sync.Mutex
	interner    *interner
	known       map[string]*nodeRecord // nil: nothing has been listed
	lookups     map[string]bool        // Nodes to look up
	claimedZone map[string]string      // Nodes that were looked up, with the zone that a slice claims
	lookupReady chan struct{}          // signals that lookups is not empty
}

type nodeRecord struct {
	uid  types.UID
	node model.Node
}

func newNodePoller(s *Source, l *lister) *nodePoller {
	return &nodePoller{source: s, lister: l, labels: newLabelsToRead(), interner: newInterner(), lookups: map[string]bool{}, claimedZone: map[string]string{}, lookupReady: make(chan struct{}, 1)}
}

// run polls until ctx ends.
func (r *nodePoller) run(ctx context.Context) {
	backoff := r.source.newBackoff()
	clock := interruptibleClock{now: r.source.opt.Now, done: ctx.Done(), after: r.source.opt.After, outage: r.source.unreachable}
	for round := 0; ctx.Err() == nil; {
		needFull, err := r.list(ctx, round%fullListEvery == 0)
		switch {
		case err != nil:
			select {
			case <-clock.After(backoff.Step()):
			case <-ctx.Done():
			}
			continue
		case needFull:
			round = 0
			continue
		}
		round++
		backoff = r.source.newBackoff()
		r.waitForNextList(ctx)
	}
}

// waitForNextList waits until the next list is due. Meanwhile it looks up single Nodes.
func (r *nodePoller) waitForNextList(ctx context.Context) {
	r.mu.Lock()
	nodes := time.Duration(len(r.known))
	r.mu.Unlock()
	interval := max(minListInterval, nodes*listIntervalPerNode)
	listDue := r.source.opt.After(interval*3/4 + rand.N(interval/2))
	var lookupDue <-chan time.Time
	forLabels := false
	for {
		select {
		case <-r.labels.changed:
			if !forLabels {
				forLabels = true
				wait := rand.N(min(nodes*labelsJitterPerNode, maxLabelsJitter) + 1)
				listDue = r.source.opt.After(max(wait, r.labelsNotBefore.Sub(r.source.opt.Now())))
			}
		case <-ctx.Done():
			return
		case <-listDue:
			if forLabels {
				r.labelsNotBefore = r.source.opt.Now().Add(max(podWatchInterval, interval/labelsShare))
			}
			return
		case <-r.lookupReady:
			if lookupDue == nil {
				lookupDue = r.source.opt.After(rand.N(min(nodes*lookupJitterPerNode, maxLookupJitter) + 1))
			}
		case <-lookupDue:
			lookupDue = nil
			if r.lookupNext(ctx) {
				lookupDue = r.source.opt.After(nodes * lookupIntervalPerNode)
			}
		}
	}
}

// list lists all Nodes, whole ones or their metadata. needFull: so many are new that a full list is cheaper than lookups.
func (r *nodePoller) list(ctx context.Context, full bool) (needFull bool, err error) {
	l := r.lister
	if err := l.backoff(ctx, true); err != nil {
		return false, err
	}
	refusalFinal := l.refusalIsFinal()
	labels := r.labels.begin()
	listed := map[string]*nodeRecord{}
	accept, parse := listMetadata, r.parseMetadata
	if full {
		accept, parse = runtime.ContentTypeProtobuf, r.parseNode
	}
	_, err = l.resource.streamItems(ctx, accept, metav1.ListOptions{ResourceVersion: "0"}, func(raw []byte) error {
		n, err := parse(raw)
		if err == nil {
			listed[n.node.Name] = n
		}
		return err
	})
	if err = l.record(ctx, err, false, refusalFinal); err != nil {
		if ctx.Err() == nil {
			l.state.markStopped(r.epoch)
		}
		return false, err
	}
	r.epoch = l.state.markWatching()
	needFull = r.applyList(listed, full)
	r.source.labelsRead(model.NodeLabelsKind, labels)
	return needFull, nil
}

func (r *nodePoller) parseNode(raw []byte) (*nodeRecord, error) {
	var o corev1.Node
	if err := o.Unmarshal(raw); err != nil {
		return nil, fmt.Errorf("decode Node: %w", err)
	}
	return r.convert(&o)
}

func (r *nodePoller) parseMetadata(raw []byte) (*nodeRecord, error) {
	var o metav1.PartialObjectMetadata
	if err := o.Unmarshal(raw); err != nil {
		return nil, fmt.Errorf("decode Node metadata: %w", err)
	}
	return r.convert(&corev1.Node{ObjectMeta: o.ObjectMeta})
}

func (r *nodePoller) convert(o *corev1.Node) (*nodeRecord, error) {
	p, err := r.source.otherNodes.convert(r.interner, o)
	if err != nil {
		return nil, err
	}
	p.value.Labels = only(p.value.Labels, r.labels.reading, r.interner)
	return &nodeRecord{o.UID, *p.value}, nil
}

// applyList replaces the known Nodes. A Node that is new in a metadata list is left out until its CPU is known, because
// a policy would take it for a Node without CPU.
func (r *nodePoller) applyList(listed map[string]*nodeRecord, full bool) (needFull bool) {
	var objects []any
	r.mu.Lock()
	newNodes := 0
	for name, n := range listed {
		old := r.known[name]
		switch {
		case full:
		case old == nil:
			newNodes++
			r.lookups[name] = true
			delete(listed, name)
			continue
		default:
			n.node.MilliCPU, n.node.Ready = old.node.MilliCPU, old.node.Ready
			n.node.Addresses, n.node.PodCIDRs = old.node.Addresses, old.node.PodCIDRs
			if n.uid != old.uid {
				newNodes++
				r.lookups[name] = true
				n.uid = old.uid // looked up again if that fails
			}
		}
		objects = append(objects, &converted[model.Node]{name: model.Name{Name: name}, value: &n.node})
	}
	if full {
		clear(r.lookups)
	}
	if needFull = newNodes > 16 && newNodes > len(listed)/4; needFull {
		clear(r.lookups)
	}
	first := r.known == nil
	r.known = listed
	r.signalLookups()
	r.mu.Unlock()
	_ = r.source.otherNodes.Replace(objects, "") // already converted: cannot fail
	if first {
		r.source.publish([]model.Change{{Kind: model.NodesPartialKind}})
	}
	r.source.slices.forEach(r.observeSlice)
	return needFull
}

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

	"github.com/sluice-proxy/sluice/host/model"
)

// How often a node reads the other Nodes: the more there are, the more seldom, so that the cost to an API server grows with
// the cluster and not with its square. At 5,000 Nodes that is a list in half an hour by each.
const (
	listIntervalPerNode = 360 * time.Millisecond // between two lists, for each Node of the cluster
	minListInterval     = 10 * time.Second
	fullListEvery       = 12 // of so many lists one is of whole Nodes, the others of metadata

	// Nodes that slices name and that are not known: what a node waits at most before it asks for the first of them, as all
	// others see the same slice, and between two.
	lookupJitterPerNode   = 8 * time.Millisecond
	maxLookupJitter       = 40 * time.Second
	lookupIntervalPerNode = 600 * time.Microsecond

	maxClaimedZones = 1 << 14
)

// nodePoller keeps what policies want to know of the other Nodes: zone and CPU. It lists their metadata now and then,
// which is a quarter of the work that whole Nodes are and a tenth of the bytes, asks for the CPU of each once, and for
// those that slices name and it does not know, or knows in another zone. Watching them would mean to be sent 10 KiB
// each time that any kubelet writes its Node's status.
type nodePoller struct {
	source *Source
	lister *lister
	epoch  int // of the lister's contact

	mu          sync.Mutex
	interner    *interner
	known       map[string]*nodeRecord // nil: nothing has been read
	lookups     map[string]bool        // Nodes to be asked for
	claimedZone map[string]string      // Nodes that have been asked for, with the zone that a slice said
	lookupReady chan struct{}          // there are asks
}

type nodeRecord struct {
	uid  types.UID
	node model.Node
}

func newNodePoller(s *Source, l *lister) *nodePoller {
	return &nodePoller{source: s, lister: l, interner: newInterner(), lookups: map[string]bool{}, claimedZone: map[string]string{}, lookupReady: make(chan struct{}, 1)}
}

// run reads until ctx ends.
func (r *nodePoller) run(ctx context.Context) {
	pace := r.source.newBackoff()
	clock := interruptibleClock{now: r.source.opt.Now, done: ctx.Done(), after: r.source.opt.After, outage: r.source.unreachable}
	for turn := 0; ctx.Err() == nil; {
		more, err := r.list(ctx, turn%fullListEvery == 0)
		switch {
		case err != nil:
			select {
			case <-clock.After(pace.Step()):
			case <-ctx.Done():
			}
			continue
		case more:
			turn = 0
			continue
		}
		turn++
		pace = r.source.newBackoff()
		r.waitForNextList(ctx)
	}
}

// waitForNextList waits until it is time for a list, and asks for single Nodes meanwhile.
func (r *nodePoller) waitForNextList(ctx context.Context) {
	r.mu.Lock()
	nodes := time.Duration(len(r.known))
	r.mu.Unlock()
	each := max(minListInterval, nodes*listIntervalPerNode)
	list := r.source.opt.After(each*3/4 + rand.N(each/2))
	var look <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-list:
			return
		case <-r.lookupReady:
			if look == nil {
				look = r.source.opt.After(rand.N(min(nodes*lookupJitterPerNode, maxLookupJitter) + 1))
			}
		case <-look:
			look = nil
			if r.lookupNext(ctx) {
				look = r.source.opt.After(nodes * lookupIntervalPerNode)
			}
		}
	}
}

// list reads all Nodes. more: so many are new that whole ones are to be read.
func (r *nodePoller) list(ctx context.Context, full bool) (more bool, err error) {
	l := r.lister
	if err := l.backoff(ctx, true); err != nil {
		return false, err
	}
	final := l.refusalIsFinal()
	listed := map[string]*nodeRecord{}
	accept, item := nodeMetadata, r.parseMetadata
	if full {
		accept, item = runtime.ContentTypeProtobuf, r.parseNode
	}
	err = l.resource.streamItems(ctx, accept, metav1.ListOptions{ResourceVersion: "0"}, func(raw []byte) error {
		n, err := item(raw)
		if err == nil {
			listed[n.node.Name] = n
		}
		return err
	})
	if err = l.record(ctx, err, false, final); err != nil {
		if ctx.Err() == nil {
			l.state.markStopped(r.epoch)
		}
		return false, err
	}
	r.epoch = l.state.markWatching()
	return r.applyList(listed, full), nil
}

// parseNode and metadata read one item.
func (r *nodePoller) parseNode(raw []byte) (*nodeRecord, error) {
	var o corev1.Node
	if err := o.Unmarshal(raw); err != nil {
		return nil, fmt.Errorf("Node: %w", err)
	}
	return r.convert(&o)
}

func (r *nodePoller) parseMetadata(raw []byte) (*nodeRecord, error) {
	var o metav1.PartialObjectMetadata
	if err := o.Unmarshal(raw); err != nil {
		return nil, fmt.Errorf("metadata of a Node: %w", err)
	}
	return r.convert(&corev1.Node{ObjectMeta: o.ObjectMeta})
}

func (r *nodePoller) convert(o *corev1.Node) (*nodeRecord, error) {
	p, err := r.source.otherNodes.convert(r.interner, o)
	if err != nil {
		return nil, err
	}
	return &nodeRecord{o.UID, *p.value}, nil
}

// applyList takes a list in. What is new in a list of metadata counts once its CPU is known; meanwhile it is not there, as a zone
// without CPU would be none.
func (r *nodePoller) applyList(listed map[string]*nodeRecord, full bool) (more bool) {
	var parcels []any
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
			n.node.MilliCPU = old.node.MilliCPU
			if n.uid != old.uid {
				newNodes++
				r.lookups[name] = true
				n.uid = old.uid // asked for again if that fails
			}
		}
		parcels = append(parcels, &converted[model.Node]{name: model.Name{Name: name}, value: &n.node})
	}
	if full {
		clear(r.lookups)
	}
	if more = newNodes > 16 && newNodes > len(listed)/4; more {
		clear(r.lookups)
	}
	first := r.known == nil
	r.known = listed
	r.signalLookups()
	r.mu.Unlock()
	_ = r.source.otherNodes.Replace(parcels, "") // parcels are converted: nothing can fail
	if first {
		r.source.publish([]model.Change{{Kind: model.NodesKind}})
	}
	r.source.slices.forEach(r.observeSlice)
	return more
}

func (r *nodePoller) signalLookups() {
	if len(r.lookups) == 0 {
		return
	}
	select {
	case r.lookupReady <- struct{}{}:
	default:
	}
}

// observeSlice notes the Nodes that a slice names and that are not known as it says.
func (r *nodePoller) observeSlice(v *model.EndpointSlice) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known == nil {
		return
	}
	for i := range v.Endpoints {
		e := &v.Endpoints[i]
		if e.Node == "" || e.Node == r.source.opt.Node {
			continue
		}
		if n := r.known[e.Node]; n != nil && (e.Zone == "" || e.Zone == n.node.Zone) {
			continue
		}
		if claimed, asked := r.claimedZone[e.Node]; asked && claimed == e.Zone || !asked && len(r.claimedZone) >= maxClaimedZones {
			continue // the Node is not there, or says something else
		}
		r.claimedZone[e.Node] = e.Zone
		r.lookups[e.Node] = true
	}
	r.signalLookups()
}

// lookupNext asks for one of the Nodes that are to be asked for, and tells whether there are more.
func (r *nodePoller) lookupNext(ctx context.Context) (more bool) {
	r.mu.Lock()
	var name string
	for name = range r.lookups {
		break
	}
	delete(r.lookups, name)
	more = len(r.lookups) > 0
	r.mu.Unlock()
	if name == "" {
		return false
	}
	l := r.lister
	list, err := r.source.opt.Client.node(name).list(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err = l.record(ctx, err, false, false); err != nil {
		return more // the next list finds it
	}
	nodes, ok := list.(*corev1.NodeList)
	if !ok || len(nodes.Items) == 0 {
		return more
	}
	n, err := r.convert(&nodes.Items[0])
	if err != nil {
		return more
	}
	r.mu.Lock()
	if n.node.Zone == r.claimedZone[name] {
		delete(r.claimedZone, name)
	}
	r.known[name] = n
	r.mu.Unlock()
	_ = r.source.otherNodes.Update(&converted[model.Node]{name: model.Name{Name: name}, value: &n.node})
	return more
}

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
	listPerNode = 360 * time.Millisecond // between two lists, for each Node of the cluster
	listLeast   = 10 * time.Second
	wholeEach   = 12 // of so many lists one is of whole Nodes, the others of metadata

	// Nodes that slices name and that are not known: what a node waits at most before it asks for the first of them, as all
	// others see the same slice, and between two.
	lookPerNode = 8 * time.Millisecond
	lookMost    = 40 * time.Second
	paceOfLooks = 600 * time.Microsecond

	maxDoubts = 1 << 14
)

// nodeReader keeps what policies want to know of the other Nodes: zone and CPU. It lists their metadata now and then,
// which is a quarter of the work that whole Nodes are and a tenth of the bytes, asks for the CPU of each once, and for
// those that slices name and it does not know, or knows in another zone. Watching them would mean to be sent 10 KiB
// each time that any kubelet writes its Node's status.
type nodeReader struct {
	source *Source
	lister *lister
	turn   int // of the lister's contact

	mu      sync.Mutex
	strings *strings
	known   map[string]*knownNode // nil: nothing has been read
	asks    map[string]bool       // Nodes to be asked for
	doubts  map[string]string     // Nodes that have been asked for, with the zone that a slice said
	news    chan struct{}         // there are asks
}

type knownNode struct {
	uid  types.UID
	node model.Node
}

func newNodeReader(s *Source, l *lister) *nodeReader {
	return &nodeReader{source: s, lister: l, strings: newStrings(), asks: map[string]bool{}, doubts: map[string]string{}, news: make(chan struct{}, 1)}
}

// run reads until ctx ends.
func (r *nodeReader) run(ctx context.Context) {
	pace := r.source.pace()
	clock := endingClock{now: r.source.opt.Now, done: ctx.Done(), after: r.source.opt.After, outage: r.source.server}
	for turn := 0; ctx.Err() == nil; {
		more, err := r.list(ctx, turn%wholeEach == 0)
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
		pace = r.source.pace()
		r.rest(ctx)
	}
}

// rest waits until it is time for a list, and asks for single Nodes meanwhile.
func (r *nodeReader) rest(ctx context.Context) {
	r.mu.Lock()
	nodes := time.Duration(len(r.known))
	r.mu.Unlock()
	each := max(listLeast, nodes*listPerNode)
	list := r.source.opt.After(each*3/4 + rand.N(each/2))
	var look <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-list:
			return
		case <-r.news:
			if look == nil {
				look = r.source.opt.After(rand.N(min(nodes*lookPerNode, lookMost) + 1))
			}
		case <-look:
			look = nil
			if r.look(ctx) {
				look = r.source.opt.After(nodes * paceOfLooks)
			}
		}
	}
}

// list reads all Nodes. more: so many are new that whole ones are to be read.
func (r *nodeReader) list(ctx context.Context, whole bool) (more bool, err error) {
	l := r.lister
	if err := l.pause(ctx, true); err != nil {
		return false, err
	}
	final := l.final()
	now := map[string]*knownNode{}
	accept, item := nodeMetadata, r.metadata
	if whole {
		accept, item = runtime.ContentTypeProtobuf, r.whole
	}
	err = l.from.each(ctx, accept, metav1.ListOptions{ResourceVersion: "0"}, func(raw []byte) error {
		n, err := item(raw)
		if err == nil {
			now[n.node.Name] = n
		}
		return err
	})
	if err = l.done(ctx, err, false, final); err != nil {
		if ctx.Err() == nil {
			l.contact.isNot(r.turn)
		}
		return false, err
	}
	r.turn = l.contact.is()
	return r.take(now, whole), nil
}

// whole and metadata read one item.
func (r *nodeReader) whole(raw []byte) (*knownNode, error) {
	var o corev1.Node
	if err := o.Unmarshal(raw); err != nil {
		return nil, fmt.Errorf("Node: %w", err)
	}
	return r.convert(&o)
}

func (r *nodeReader) metadata(raw []byte) (*knownNode, error) {
	var o metav1.PartialObjectMetadata
	if err := o.Unmarshal(raw); err != nil {
		return nil, fmt.Errorf("metadata of a Node: %w", err)
	}
	return r.convert(&corev1.Node{ObjectMeta: o.ObjectMeta})
}

func (r *nodeReader) convert(o *corev1.Node) (*knownNode, error) {
	p, err := r.source.others.convert(r.strings, o)
	if err != nil {
		return nil, err
	}
	return &knownNode{o.UID, *p.value}, nil
}

// take takes a list in. What is new in a list of metadata counts once its CPU is known; meanwhile it is not there, as a zone
// without CPU would be none.
func (r *nodeReader) take(now map[string]*knownNode, whole bool) (more bool) {
	var parcels []any
	r.mu.Lock()
	fresh := 0
	for name, n := range now {
		old := r.known[name]
		switch {
		case whole:
		case old == nil:
			fresh++
			r.asks[name] = true
			delete(now, name)
			continue
		default:
			n.node.MilliCPU = old.node.MilliCPU
			if n.uid != old.uid {
				fresh++
				r.asks[name] = true
				n.uid = old.uid // asked for again if that fails
			}
		}
		parcels = append(parcels, &parcel[model.Node]{name: model.Name{Name: name}, value: &n.node})
	}
	if whole {
		clear(r.asks)
	}
	if more = fresh > 16 && fresh > len(now)/4; more {
		clear(r.asks)
	}
	first := r.known == nil
	r.known = now
	r.wake()
	r.mu.Unlock()
	_ = r.source.others.Replace(parcels, "") // parcels are converted: nothing can fail
	if first {
		r.source.put([]model.Change{{Kind: model.NodesKind}})
	}
	r.source.slices.each(r.see)
	return more
}

func (r *nodeReader) wake() {
	if len(r.asks) == 0 {
		return
	}
	select {
	case r.news <- struct{}{}:
	default:
	}
}

// see notes the Nodes that a slice names and that are not known as it says.
func (r *nodeReader) see(v *model.EndpointSlice) {
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
		if said, asked := r.doubts[e.Node]; asked && said == e.Zone || !asked && len(r.doubts) >= maxDoubts {
			continue // the Node is not there, or says something else
		}
		r.doubts[e.Node] = e.Zone
		r.asks[e.Node] = true
	}
	r.wake()
}

// look asks for one of the Nodes that are to be asked for, and tells whether there are more.
func (r *nodeReader) look(ctx context.Context) (more bool) {
	r.mu.Lock()
	var name string
	for name = range r.asks {
		break
	}
	delete(r.asks, name)
	more = len(r.asks) > 0
	r.mu.Unlock()
	if name == "" {
		return false
	}
	l := r.lister
	list, err := r.source.opt.Client.node(name).list(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err = l.done(ctx, err, false, false); err != nil {
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
	if n.node.Zone == r.doubts[name] {
		delete(r.doubts, name)
	}
	r.known[name] = n
	r.mu.Unlock()
	_ = r.source.others.Update(&parcel[model.Node]{name: model.Name{Name: name}, value: &n.node})
	return more
}

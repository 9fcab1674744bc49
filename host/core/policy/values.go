package policy

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// podsWait is how long plugins that declare keys of Pods are not called because the Pods have not been read. Then the values are
// absent: a decision without them is better than none, which would be the default rules or one for earlier endpoints.
const podsWait = 30 * time.Second

// errPodsUnknown is the error of a plugin that declares keys of Pods before they are read.
var errPodsUnknown = fmt.Errorf("%w: the Pods of the Service are not known yet", ErrPending)

// waitForPods reports whether plugins that declare keys of Pods have to wait for them, given those of the chain.
func (ch *chain) waitForPods(in *Input, keys []string, nowMS int64) bool {
	if !in.Pods.Pending || !slices.ContainsFunc(keys, abi.IsPodKey) {
		ch.podsSince = 0
		return false
	}
	if ch.podsSince == 0 {
		ch.podsSince = nowMS
	}
	return nowMS < ch.podsSince+podsWait.Milliseconds()
}

// untilPods returns the earlier of a requeue time and the end of the wait for Pods, if err is that wait.
func (ch *chain) untilPods(err error, requeueAt time.Time) time.Time {
	end := time.UnixMilli(ch.podsSince).Add(podsWait)
	if errors.Is(err, errPodsUnknown) && (requeueAt.IsZero() || end.Before(requeueAt)) {
		return end
	}
	return requeueAt
}

// declaredKey is a declared key in parts.
type declaredKey struct{ kind, name string }

// addValues adds the values of the declared keys to the request.
func (b *requests) addValues(c *Call, in *Input) {
	if len(c.keys) == 0 {
		return
	}
	c.podKeys, c.serviceValues = c.podKeys[:0], c.serviceValues[:0]
	for _, k := range c.keys {
		kind, name, _ := abi.KeyKind(k)
		switch {
		case abi.IsPodKey(k):
			c.podKeys = append(c.podKeys, declaredKey{kind, name})
		case kind == abi.KeyServiceLabel:
			c.serviceValues = append(c.serviceValues, present(lookup(in.Service.Labels, name)))
		default:
			c.serviceValues = append(c.serviceValues, present(in.Service.Annotations.Get(name)))
		}
	}
	r := &c.Request
	r.ServiceValues = c.serviceValues
	n := len(c.podKeys)
	if n == 0 {
		return
	}
	c.values = slices.Grow(c.values[:0], n*len(r.Endpoints))[:n*len(r.Endpoints)]
	full := slices.Contains(c.podKeys, declaredKey{kind: abi.KeyPodCPU})
	for j, i := range b.portIndex {
		ep := &r.Endpoints[j]
		ep.Values = c.values[j*n : (j+1)*n : (j+1)*n]
		var pod *model.Pod
		if name := in.Port.Endpoints[i].Pod; name != "" {
			pod = in.Pods.All[model.Name{Namespace: r.Namespace, Name: name}]
		}
		if pod == nil {
			clear(ep.Values)
			continue
		}
		for k := range c.podKeys {
			ep.Values[k] = c.podKeys[k].of(pod)
		}
		// The condition is read with whole Pods only. What no plugin of the chain asks for does not count.
		if full && pod.ReadySince != 0 && ep.Conditions&abi.Ready != 0 {
			ep.ReadySince = min(pod.ReadySince, r.Now)
		}
	}
}

// of returns the value of a key.
func (k *declaredKey) of(pod *model.Pod) abi.Value {
	switch k.kind {
	case abi.KeyPodLabel:
		return present(lookup(pod.Labels, k.name))
	case abi.KeyPodAnnotation:
		return present(lookup(pod.Annotations, k.name))
	}
	return present(strconv.FormatInt(pod.MilliCPU, 10), pod.MilliCPU > 0)
}

func lookup(values map[string]string, key string) (string, bool) {
	text, ok := values[key]
	return text, ok
}

// present returns a value. One that is too long is absent.
func present(text string, ok bool) abi.Value {
	if !ok || len(text) > model.MaxAnnotation {
		return abi.Value{}
	}
	return abi.Value{Text: text, Present: true}
}

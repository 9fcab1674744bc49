package abi

import "strconv"

// The wire form, version 1.0. Everything is little-endian. Headers, records and sections are 8-byte aligned, and so must
// be the buffers that sluice_alloc returns. Offsets are in bytes from the start of the message. Minor versions append
// fields to headers or records and increase the header length or stride: read by those, not by the sizes below.
//
//	request header     at  size
//	  magic             0  4     RequestMagic, "SLRQ"
//	  major             4  2
//	  minor             6  2
//	  total             8  4     length of the whole request
//	  header length    12  4
//	  now              16  8     Unix milliseconds, a multiple of 1000; setting the wall clock does not change it
//	  generation       24  8
//	  namespace        32  4     string id
//	  service          36  4     string id
//	  port name        40  4     string id
//	  node             44  4     string id, this node
//	  zone             48  4     string id, this node's zone
//	  port             52  2
//	  protocol         54  1     IANA number
//	  family           55  1     4 or 6
//	  pool             56  1     PoolCluster or PoolLocal
//	  policy           57  1     PolicyInternalLocal, PolicyExternalLocal
//	  zone index       58  2     row of this node's zone in the zone table, NoZone
//	  (zero)           60  4
//	  affinity         64  8     milliseconds, 0: none
//	  endpoints        72  12    offset, count, stride
//	  zones            84  12    offset, count, stride
//	  strings          96  12    offset, count, stride
//	  state           108  8     offset, length
//	  (zero)          116  4
//
//	endpoint record    at  size
//	  address           0  16    IPv4 as ::ffff:a.b.c.d
//	  port             16  2
//	  zone index       18  2     row of its zone in the zone table, NoZone
//	  conditions       20  4     Ready … HintedNode
//	  node             24  4     string id
//	  zone             28  4     string id
//	  weight           32  4
//	  prior weight     36  4     signed, NoWeight
//	  ready since      40  8     Unix milliseconds, NoTime
//	  terminating since 48 8     Unix milliseconds, NoTime
//	  connections      56  4     ConnectionsUnknown
//	  metadata         60  4     string id
//
//	zone record        at  size
//	  zone              0  4     string id
//	  nodes             4  4
//	  ready             8  4     ready endpoints of this Service port
//	  (zero)           12  4
//	  millicores       16  8     allocatable CPU
//
//	string record      at  size
//	  id                0  4
//	  offset            4  4     of the text, UTF-8
//	  length            8  4
//	  (zero)           12  4
//
// The id of the empty string is NoString. The string table of a request contains every id that the request uses, once, in
// unspecified order. An id stands for the same text for the whole life of a guest instance.
//
//	response header    at  size
//	  magic             0  4     ResponseMagic, "SLRP"
//	  total             4  4     length of the whole response, what sluice_decide returns
//	  header length     8  4
//	  results          12  12    offset, count (that of the request's endpoints), stride
//	  requeue          24  4     milliseconds, 0: only on a change
//	  balance          28  4     BalanceDefault … BalanceLeastConnections
//	  state            32  8     offset, length (at most MaxStateLen)
//	  reasons          40  8     offset, count (at most MaxReasonCount)
//
//	result record      at  size
//	  weight            0  4     more than MaxWeight counts as MaxWeight
//	  flags             4  4     FlagKeepDraining; unknown ones are ignored
//	  reset after       8  4     milliseconds, NeverReset
//	  reason           12  4     index of a reason, NoReasonIndex
//
//	reason record      at  size
//	  offset            0  4     of the text, printable UTF-8
//	  length            4  4     at most MaxReasonLen; all texts together at most MaxReasonsLen
const (
	RequestMagic  = 0x51524C53
	ResponseMagic = 0x50524C53
)

// Offsets in the request header, and its length.
const (
	ReqMagic           = 0
	ReqMajor           = 4
	ReqMinor           = 6
	ReqTotal           = 8
	ReqHeaderLength    = 12
	ReqNow             = 16
	ReqGeneration      = 24
	ReqNamespace       = 32
	ReqService         = 36
	ReqPortName        = 40
	ReqNode            = 44
	ReqZone            = 48
	ReqPort            = 52
	ReqProtocol        = 54
	ReqFamily          = 55
	ReqPool            = 56
	ReqPolicy          = 57
	ReqZoneIndex       = 58
	ReqSessionAffinity = 64
	ReqEndpointsOffset = 72
	ReqEndpointsCount  = 76
	ReqEndpointsStride = 80
	ReqZonesOffset     = 84
	ReqZonesCount      = 88
	ReqZonesStride     = 92
	ReqStringsOffset   = 96
	ReqStringsCount    = 100
	ReqStringsStride   = 104
	ReqStateOffset     = 108
	ReqStateLength     = 112
	ReqSize            = 120
)

// NoZone is the index of a zone that is not in the zone table.
const NoZone = 0xFFFF

// Bits of the request's policy field.
const (
	PolicyInternalLocal = 1 << 0
	PolicyExternalLocal = 1 << 1
)

// Offsets in an endpoint record, and its stride.
const (
	EndpointAddr             = 0
	EndpointPort             = 16
	EndpointZoneIndex        = 18
	EndpointConditions       = 20
	EndpointNode             = 24
	EndpointZone             = 28
	EndpointWeight           = 32
	EndpointPriorWeight      = 36
	EndpointReadySince       = 40
	EndpointTerminatingSince = 48
	EndpointConnections      = 56
	EndpointMetadata         = 60
	EndpointSize             = 64
)

// Offsets in a zone record, and its stride.
const (
	ZoneName     = 0
	ZoneNodes    = 4
	ZoneReady    = 8
	ZoneMilliCPU = 16
	ZoneSize     = 24
)

// Offsets in a string record, and its stride.
const (
	StringID     = 0
	StringOffset = 4
	StringLength = 8
	StringSize   = 16
)

// Offsets in the response header, and its length.
const (
	RespMagic         = 0
	RespTotal         = 4
	RespHeaderLength  = 8
	RespResultsOffset = 12
	RespResultsCount  = 16
	RespResultsStride = 20
	RespRequeueAfter  = 24
	RespBalance       = 28
	RespStateOffset   = 32
	RespStateLength   = 36
	RespReasonsOffset = 40
	RespReasonsCount  = 44
	RespSize          = 48
)

// Offsets in a result record, and its stride.
const (
	ResultWeight     = 0
	ResultFlags      = 4
	ResultResetAfter = 8
	ResultReason     = 12
	ResultSize       = 16
)

// Offsets in a reason record, and its size.
const (
	ReasonOffset = 0
	ReasonLength = 4
	ReasonSize   = 8
)

// Limits of reasons. See also MaxReasonsLen.
const (
	MaxReasonLen   = 256 // bytes of one reason
	MaxReasonCount = 256 // reasons in a response
)

// MaxResponse returns the size of the longest response for n endpoints, in bytes: the capacity of the buffer that a host
// passes to sluice_decide.
func MaxResponse(n int) int {
	return RespSize + n*ResultSize + MaxStateLen + MaxReasonCount*ReasonSize + MaxReasonsLen
}

// Error codes of sluice_decide and sluice_configure; the message goes through sluice.log. Other negative numbers are errors
// too.
const (
	CodeFailed        = -1 // the plugin returned an error
	CodeBadRequest    = -2 // the request could not be read
	CodeNoRoom        = -3 // the response does not fit the buffer
	CodeNotConfigured = -4 // sluice_decide before a successful sluice_configure
)

// CodeText returns a human-readable text for an error code.
func CodeText(code int64) string {
	switch code {
	case CodeFailed:
		return "the plugin returned an error"
	case CodeBadRequest:
		return "the plugin could not read the request"
	case CodeNoRoom:
		return "the response does not fit the buffer"
	case CodeNotConfigured:
		return "the plugin is not configured"
	}
	return "error code " + strconv.FormatInt(code, 10)
}

// Levels of sluice.log.
const (
	LogDebug = 0
	LogInfo  = 1
	LogWarn  = 2
	LogError = 3
)

// MaxLogLen is the longest log message in bytes; hosts may truncate longer ones.
const MaxLogLen = 1024

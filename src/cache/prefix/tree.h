// The prefix tree: which token histories have their K and V in sealed pages, and which page leaves
// first when room is needed.
//
// A node is one page: the `page_tokens` tokens that follow its parent's, and the page ids that hold
// them, one per cache group. A root stands for a namespace and holds no page. The tree owns no
// page: it is given ids, and hands them back when their node leaves. It sees no bytes, no pool, no
// clock.
//
// Invariants (check_invariants walks them; tests cite the numbers)
// I1 A node's key is next_key(its parent's key, its tokens). Children are sorted by their tokens,
// no
//    two are equal.
// I2 A root has children: it comes with the first and goes with the last.
// I3 The candidates for eviction are exactly the leaves without lock or pin, each at its present
//    rank; those that can expire also in the order of expiry.
// I4 Counts and bytes are the sums over nodes; what pins keep never exceeds the pin budget.
// I5 No key is both in the tree and remembered as evicted.
// I6 A node out of the tree that still exists is locked, and has neither pages nor relatives.
// The name of an unlocked node is good until the next evict_one, erase_subtree or clear; of a
// locked one until its last unlock. Thread safety: engine thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/types.h"
#include "cache/page/pool.h"
#include "cache/policy/eviction.h"
#include "cache/prefix/evicted_keys.h"
#include "cache/prefix/match.h"
#include "cache/prefix/page_key.h"

namespace kvasir::cache {

/// How long a page ought to stay.
struct Retention {
  int priority = kDefaultPriority;  ///< 0..kMaxPriority; the lowest class leaves first
  /// Seconds after its last use from which a page leaves before all that have not expired; 0:
  /// never. Until it leaves it is matched like any other.
  double ttl_seconds = 0;
};

/// A sealed page to be published. Its bytes are complete, and the caller keeps its ids alive for
/// the tree as long as the tree names them.
struct SealedPage {
  std::span<const TokenId> tokens;  ///< [page_tokens]
  std::span<const PageId> pages;    ///< one per cache group; kNoPage where a window has passed
  std::uint64_t bytes = 0;          ///< what evicting it would free; > 0
  double compute_seconds = 0;       ///< what computing it took
  Retention retention = {};
};

/// A page that has left the tree, with all that a lower tier stores beside its bytes.
struct Evicted {
  PageKey key, previous;  ///< previous: its parent's (or root's)
  std::vector<TokenId> tokens;
  std::vector<PageId> pages;  ///< the caller's again
  NodeStats stats;
  bool is_expired = false;  ///< left because its time was over
};

class PrefixTree {
 public:
  struct Options {
    int page_tokens = 32;                ///< > 0
    std::uint64_t pin_budget_bytes = 0;  ///< 0: nothing can be pinned
    std::size_t n_evicted_keys = 65536;  ///< remembered for the reason of a miss; 100 bytes each
  };
  struct Insert {
    NodeId node;          ///< none: the parent has left the tree, nothing is published
    bool is_new = false;  ///< false: an equal page was there; share pages(node), drop your own
  };
  /// Pages, unless the name says bytes or roots.
  struct Counts {
    std::uint64_t n_nodes = 0, n_roots = 0;
    std::uint64_t n_candidates = 0;    ///< that evict_one may take now
    std::uint64_t n_evicted_keys = 0;  ///< remembered
    std::uint64_t bytes = 0;
    std::uint64_t pinned_bytes = 0;              ///< of pinned pages and of all before them
    std::uint64_t n_hits = 0;                    ///< touched, ever
    std::uint64_t n_evicted = 0, n_expired = 0;  ///< by evict_one, ever; expired ones are in both
  };

  explicit PrefixTree(const Options& options);

  /// The longest cached prefix of `tokens`. At most tokens.size() - 1 of them are reused, so that
  /// something is left to compute. Changes nothing: lock and touch what is used.
  /// Cost: per page O(page_tokens + log children) token comparisons, times the log where siblings
  /// share long runs; and one SHA-256 at the end, none for pages that are found.
  Match match(const PageKey& root, std::span<const TokenId> tokens) const;

  /// Publishes the first page of a history, or the one after `parent`. When an equal page is there,
  /// it stays and is used once more, and of both retentions the longer one holds.
  /// Cost: one SHA-256; O(log n), and 4 bytes moved per sibling.
  Insert insert(const PageKey& root, const SealedPage& page, double now_seconds);
  Insert insert(NodeId parent, const SealedPage& page, double now_seconds);

  /// Counted: while a node is locked neither it nor a page before it is evicted. Locking the last
  /// node of a match protects all of them. A node out of the tree may be locked again and unlocked.
  /// Cost: O(log n).
  void lock(NodeId node);
  void unlock(NodeId node);

  /// These pages are used at `now_seconds`. Nodes out of the tree are passed over. Cost: O(log n)
  /// each.
  void touch(std::span<const NodeId> nodes, double now_seconds);

  /// Errors: kNotFound (the node has left the tree).
  Status set_retention(NodeId node, const Retention& retention);

  /// Forbids eviction until unpin; no count, the second pin is the first. All pages before it stay
  /// with it, hence count against the budget too.
  /// Errors: kExhausted with the numbers, kNotFound (the node has left the tree); nothing has then
  /// changed. Cost: O(pages before it).
  Status pin(NodeId node);
  void unpin(NodeId node);

  /// Takes the page that is to leave first out of the tree: of the leaves without lock or pin the
  /// one that expired first, else the lowest by eviction_rank. Its key is remembered as evicted.
  /// Absent: every page is locked, pinned, or before one that is.
  /// Cost: O(log n); O(n log n) when the policy is another than in the last call, or the time
  /// between two uses of a page has become another.
  std::optional<Evicted> evict_one(double now_seconds, EvictionPolicy policy);

  /// Takes a page and all that follow it out of the tree, last ones first, locked and pinned or
  /// not, and does not remember them as evicted: its bytes are damaged. Empty when it has left
  /// already.
  std::vector<Evicted> erase_subtree(NodeId node);
  /// Takes every page out, and forgets what was evicted.
  std::vector<Evicted> clear();

  /// False once the node has been erased while it was locked; only lock, unlock, touch, unpin and
  /// insert (as a parent) take it then.
  bool is_in_tree(NodeId node) const;
  /// Require: is_in_tree. Valid until the next non-const call.
  const PageKey& key(NodeId node) const { return in_tree(node).key; }
  std::span<const TokenId> tokens(NodeId node) const { return in_tree(node).tokens; }
  std::span<const PageId> pages(NodeId node) const { return in_tree(node).pages; }
  const NodeStats& stats(NodeId node) const { return in_tree(node).stats; }
  bool is_pinned(NodeId node) const { return in_tree(node).is_pinned; }

  const Options& options() const { return options_; }
  Counts counts() const;
  /// Aborts unless I1..I6 hold. Cost: O(pages), one SHA-256 each.
  void check_invariants() const;

 private:
  using Index = std::uint32_t;  ///< into nodes_
  static constexpr Index kNone = NodeId::kNone;
  enum class State : std::uint8_t { kFree, kInTree, kOut };

  struct Node {
    PageKey key;
    std::vector<TokenId> tokens;
    std::vector<PageId> pages;
    std::vector<Index> children;  ///< I1
    NodeStats stats;
    double ttl_seconds = 0;
    Index parent = kNone;
    std::uint32_t generation = 0;
    std::uint32_t n_locks = 0;
    std::uint32_t n_pins = 0;  ///< of this node and of all after it
    State state = State::kFree;
    bool is_root = false, is_pinned = false, is_candidate = false;
  };
  /// Where some tokens stand among the children of a node.
  struct Place {
    std::size_t child_idx = 0;  ///< before which of the children they belong
    Index nearest = kNone;      ///< the child that agrees longest; none: there are no children
    std::size_t n_equal = 0;    ///< its first tokens that agree
  };

  const Node& checked(NodeId id) const;
  Node& checked(NodeId id) { return const_cast<Node&>(std::as_const(*this).checked(id)); }
  const Node& in_tree(NodeId id) const;
  NodeId id_of(Index index) const {
    return {.index = index, .generation = nodes_[index].generation};
  }

  Place find_place(const Node& parent, std::span<const TokenId> tokens) const;
  Insert insert_after(Index parent, const SealedPage& page, double now_seconds);
  Index add_node(Index parent, std::size_t child_idx, const SealedPage& page, double now_seconds);
  Index take_slot();
  void free_slot(Index index);
  Evicted remove_leaf(Index index);
  void remove_root(Index root);
  void remove_subtree(Index top, std::vector<Evicted>& removed);

  static bool is_evictable(const Node& node);
  void list(Index index);
  void unlist(Index index);
  static void use(Node& node, double now_seconds);
  static void retain(Node& node, const Retention& retention);
  void note_gap(double seconds);
  void rank_by(EvictionPolicy policy);
  EvictionRank rank(Index index) const;
  void release_pin(Index index);

  void check_node(Index index) const;
  void check_children(Index index) const;
  void check_roots() const;
  void check_sums() const;

  const Options options_;
  std::vector<Node> nodes_;
  std::vector<Index> free_slots_;  ///< a stack
  std::unordered_map<PageKey, Index> roots_;
  EvictedKeys evicted_keys_;
  std::set<EvictionRank> candidates_;  ///< by `policy_`
  std::set<EvictionRank> expiries_;    ///< of the candidates that can expire
  EvictionPolicy policy_ = EvictionPolicy::kLru;
  double stretch_seconds_ = 0;  ///< that `candidates_` are ranked with
  double gap_seconds_ = 0;      ///< between two uses of a page: a running mean
  std::uint64_t n_gaps_ = 0;    ///< that it has seen
  std::uint64_t n_nodes_ = 0, bytes_ = 0, pinned_bytes_ = 0;
  std::uint64_t n_hits_ = 0, n_evicted_ = 0, n_expired_ = 0;
};

}  // namespace kvasir::cache

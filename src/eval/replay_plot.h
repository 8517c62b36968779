// Hit rates over capacity as a picture: SVG that needs nothing beside it.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "eval/cache_replay.h"

namespace kvasir::eval {

/// A line for each policy, in the order of `rows`, from capacity to capacity (logarithmic), below
/// the trace's bound. `title` is any text. Requires: rows of this trace, at least one.
std::string plot_replays(const RequestTrace& trace, std::span<const ReplayRow> rows,
                         std::string_view title);

}  // namespace kvasir::eval
